/*
 * A far end for `linerate` to build into a device: sink, source and echo over BSD sockets.
 *
 *   sink    discard (RFC 863)   TCP and UDP   linerate throughput DEVICE --peer discard [-u]
 *   source  chargen (RFC 864)   TCP           linerate throughput DEVICE --peer chargen -R
 *   echo    echo (RFC 862)      TCP and UDP   linerate latency DEVICE --peer echo [-u]
 *
 * One thread, one select loop, memory settled when it is compiled. It allocates nothing. What the
 * sink counted is printed when a flow has been silent for a second; `--far-report` reads that from the
 * device's console, where it waits for it:
 *
 *   linerate throughput DEVICE --peer discard -u -b 10M \
 *     --far-report 'sleep 2; tail -n 1 console.log,(?P<bytes>\d+) bytes in (?P<packets>\d+) packets'
 *
 * On a system with POSIX sockets: cc -std=c99 -O2 -o target target.c && ./target
 * With lwIP: define LINERATE_LWIP, call linerate_target(9, 19, 7) from a task of its own, and define
 * LINERATE_NO_MAIN. A system without clock_gettime defines LINERATE_NOW_NS() to a function that
 * gives nanoseconds of a clock that never goes back, as unsigned 64-bit.
 *
 * The echo answers anybody: build it into devices on networks that you trust.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINERATE_LWIP
#include "lwip/sockets.h"
#else
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#endif

/* Bytes of the one buffer: a chunk of a stream, and more than the largest datagram that is to be measured. What
 * fills it may have been longer: the sink says so, and the echo does not answer it. */
#ifndef LINERATE_BUFFER_BYTES
#define LINERATE_BUFFER_BYTES 8192
#endif

/* Connections at a time; more wait in the listening queue. */
#ifndef LINERATE_CONNECTIONS
#define LINERATE_CONNECTIONS 4
#endif

/* Seconds after which a connection that moves nothing makes room: its peer may have vanished. */
#ifndef LINERATE_IDLE_S
#define LINERATE_IDLE_S 60
#endif

/* Bytes of an echo connection that wait until the peer takes them. */
#ifndef LINERATE_ECHO_BYTES
#define LINERATE_ECHO_BYTES 2048
#endif

/* 1: a UDP answer carries when its question came and when it left (bytes 16 to 31). */
#ifndef LINERATE_STAMPS
#define LINERATE_STAMPS @STAMPS@
#endif

#ifndef LINERATE_NOW_NS
#include <time.h>
static uint64_t linerate_now_ns(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) {
        return 0;
    }
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#define LINERATE_NOW_NS() linerate_now_ns()
#endif

/* A driver that notes when a frame came in can tell it here; otherwise it is when it was read. */
#ifndef LINERATE_ARRIVED_NS
#define LINERATE_ARRIVED_NS() LINERATE_NOW_NS()
#endif

/* A closed peer is an error of the call, not a signal; where no flag says so, the signal is ignored. */
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#define LINERATE_IGNORES_SIGPIPE 1
#endif

enum service { SINK, SOURCE, ECHO, SERVICES };

struct connection {
    int socket; /* -1: free */
    enum service service;
    uint64_t bytes;
    uint64_t began_ns;
    uint64_t moved_ns; /* when it last moved something */
    size_t offset; /* source: where in the pattern; echo: first byte that waits */
    size_t waiting; /* echo: bytes that wait */
    unsigned char held[LINERATE_ECHO_BYTES];
};

static unsigned char buffer[LINERATE_BUFFER_BYTES];
static struct connection connections[LINERATE_CONNECTIONS];

/* What the UDP sink has of the flow that runs. */
static uint64_t sunk_bytes, sunk_packets, sunk_full, sunk_first_ns, sunk_last_ns;

/* Silence that ends a flow of datagrams. */
static const uint64_t SILENCE_NS = 1000000000u;

static void print_count(const char *what, uint64_t bytes, uint64_t packets, uint64_t ns)
{
    /* Longs are all that C99 printf of small C libraries is sure to know: in thousands where needed. */
    unsigned long ms = (unsigned long)(ns / 1000000u);
    if (bytes > 4000000000u) {
        printf("%s: %lu%09lu bytes", what, (unsigned long)(bytes / 1000000000u),
               (unsigned long)(bytes % 1000000000u));
    } else {
        printf("%s: %lu bytes", what, (unsigned long)bytes);
    }
    if (packets > 0) {
        printf(" in %lu packets", (unsigned long)packets);
    }
    printf(", %lu.%03lu seconds\n", ms / 1000, ms % 1000);
    fflush(stdout);
}

static int set_nonblocking(int socket)
{
    int flags = fcntl(socket, F_GETFL, 0);
    return flags < 0 ? -1 : fcntl(socket, F_SETFL, flags | O_NONBLOCK);
}

static int bound(int kind, unsigned port)
{
    struct sockaddr_in address;
    int yes = 1;
    int made = socket(AF_INET, kind, 0);
    if (made < 0) {
        return -1;
    }
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons((uint16_t)port);
    (void)setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(made, (struct sockaddr *)&address, sizeof address) != 0
        || (kind == SOCK_STREAM && listen(made, LINERATE_CONNECTIONS) != 0)
        || set_nonblocking(made) != 0) {
        (void)close(made);
        return -1;
    }
    return made;
}

static void finish(struct connection *it)
{
    if (it->service == SINK) {
        print_count("sink tcp", it->bytes, 0, LINERATE_NOW_NS() - it->began_ns);
    }
    (void)close(it->socket);
    it->socket = -1;
}

/* A place for one more connection; LINERATE_CONNECTIONS when there is none. */
static size_t free_place(void)
{
    size_t place;
    for (place = 0; place < LINERATE_CONNECTIONS; place++) {
        if (connections[place].socket < 0) {
            break;
        }
    }
    return place;
}

static void take(int listener, enum service service)
{
    int yes = 1;
    size_t place = free_place();
    int made;
    if (place == LINERATE_CONNECTIONS) {
        return;
    }
    made = accept(listener, NULL, NULL);
    if (made < 0) {
        return;
    }
    if (made >= FD_SETSIZE || set_nonblocking(made) != 0) {
        (void)close(made);
        return;
    }
    (void)setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    memset(&connections[place], 0, sizeof connections[place]);
    connections[place].socket = made;
    connections[place].service = service;
    connections[place].began_ns = LINERATE_NOW_NS();
    connections[place].moved_ns = connections[place].began_ns;
}

/* 1 while the connection lives: nothing to do now is no end. */
static int lives(struct connection *it, long moved)
{
    if (moved > 0) {
        it->moved_ns = LINERATE_NOW_NS();
        return 1;
    }
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static void sink_stream(struct connection *it)
{
    long got = (long)recv(it->socket, buffer, sizeof buffer, 0);
    if (!lives(it, got)) {
        finish(it);
    } else if (got > 0) {
        it->bytes += (uint64_t)got;
    }
}

/* Characters as RFC 864 has them: lines of 72 out of 95, each beginning one further, CR LF. */
static unsigned char character(size_t offset)
{
    size_t line = offset / 74 % 95, column = offset % 74;
    if (column >= 72) {
        return column == 72 ? '\r' : '\n';
    }
    return (unsigned char)(' ' + (line + column) % 95);
}

static unsigned char pattern[74 * 95 * 2];

static void source_stream(struct connection *it)
{
    /* From anywhere in its first half a whole half follows. */
    long sent = (long)send(it->socket, pattern + it->offset, sizeof pattern / 2, MSG_NOSIGNAL);
    if (!lives(it, sent)) {
        finish(it);
    } else if (sent > 0) {
        it->offset = (it->offset + (size_t)sent) % (sizeof pattern / 2);
    }
}

/* What a client of the source says is thrown away; its end is the end. */
static void source_heard(struct connection *it)
{
    long got = (long)recv(it->socket, buffer, sizeof buffer, 0);
    if (!lives(it, got)) {
        finish(it);
    }
}

static void echo_stream(struct connection *it, int readable)
{
    if (readable && it->waiting == 0) {
        long got = (long)recv(it->socket, it->held, sizeof it->held, 0);
        if (!lives(it, got)) {
            finish(it);
            return;
        }
        if (got > 0) {
            it->offset = 0;
            it->waiting = (size_t)got;
        }
    }
    if (it->waiting > 0) {
        long sent = (long)send(it->socket, it->held + it->offset, it->waiting, MSG_NOSIGNAL);
        if (!lives(it, sent)) {
            finish(it);
        } else if (sent > 0) {
            it->offset += (size_t)sent;
            it->waiting -= (size_t)sent;
        }
    }
}

static void sink_datagrams(int socket)
{
    int burst;
    for (burst = 0; burst < 64; burst++) {
        long got = (long)recv(socket, buffer, sizeof buffer, 0);
        uint64_t now;
        if (got < 0) {
            return;
        }
        now = LINERATE_NOW_NS();
        if (sunk_packets == 0) {
            sunk_first_ns = now;
        }
        sunk_bytes += (uint64_t)got;
        sunk_packets++;
        sunk_full += (size_t)got == sizeof buffer;
        sunk_last_ns = now;
    }
}

static void end_silent_datagrams(void)
{
    if (sunk_packets > 0 && LINERATE_NOW_NS() - sunk_last_ns >= SILENCE_NS) {
        if (sunk_full > 0) {
            printf("sink udp: %lu of these filled the buffer of %lu bytes and may have been longer: build it with a "
                   "larger LINERATE_BUFFER_BYTES\n",
                   (unsigned long)sunk_full, (unsigned long)sizeof buffer);
            fflush(stdout);
        }
        print_count("sink udp", sunk_bytes, sunk_packets, sunk_last_ns - sunk_first_ns);
        sunk_bytes = 0;
        sunk_packets = 0;
        sunk_full = 0;
    }
}

static void end_idle_connections(void)
{
    uint64_t now = LINERATE_NOW_NS();
    size_t place;
    for (place = 0; place < LINERATE_CONNECTIONS; place++) {
        struct connection *it = &connections[place];
        if (it->socket >= 0 && now - it->moved_ns >= LINERATE_IDLE_S * (uint64_t)1000000000u) {
            finish(it);
        }
    }
}

#if LINERATE_STAMPS
static void put_time(unsigned char *at, uint64_t ns)
{
    int byte;
    for (byte = 7; byte >= 0; byte--) {
        at[byte] = (unsigned char)(ns & 0xff);
        ns >>= 8;
    }
}
#endif

/* Ports whose services answer what they get, and our own: an answer to one would be answered again. */
static int may_answer(unsigned port, unsigned own)
{
    return port != 0 && port != 7 && port != 13 && port != 17 && port != 19 && port != 37
        && port != own;
}

static void echo_datagrams(int socket, unsigned own)
{
    int burst;
    for (burst = 0; burst < 16; burst++) {
        struct sockaddr_in from;
        socklen_t room = sizeof from;
        long got = (long)recvfrom(socket, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &room);
        if (got < 0) {
            return;
        }
#if LINERATE_STAMPS
        if (got >= 32) {
            put_time(buffer + 16, LINERATE_ARRIVED_NS());
            put_time(buffer + 24, LINERATE_NOW_NS());
        }
#endif
        if ((size_t)got < sizeof buffer && may_answer(ntohs(from.sin_port), own)) {
            (void)sendto(socket, buffer, (size_t)got, 0, (struct sockaddr *)&from, room);
        }
    }
}

/* Serves until something breaks for good; 1 when a port cannot be had. */
int linerate_target(unsigned sink_port, unsigned source_port, unsigned echo_port)
{
    int streams[SERVICES], sink_udp, echo_udp;
    size_t place;
    streams[SINK] = bound(SOCK_STREAM, sink_port);
    streams[SOURCE] = bound(SOCK_STREAM, source_port);
    streams[ECHO] = bound(SOCK_STREAM, echo_port);
    sink_udp = bound(SOCK_DGRAM, sink_port);
    echo_udp = bound(SOCK_DGRAM, echo_port);
    if (streams[SINK] < 0 || streams[SOURCE] < 0 || streams[ECHO] < 0 || sink_udp < 0
        || echo_udp < 0) {
        printf("a port cannot be had: sink %u, source %u, echo %u\n", sink_port, source_port,
               echo_port);
        return 1;
    }
    for (place = 0; place < LINERATE_CONNECTIONS; place++) {
        connections[place].socket = -1;
    }
#ifdef LINERATE_IGNORES_SIGPIPE
#ifdef SIGPIPE
    (void)signal(SIGPIPE, SIG_IGN);
#endif
#endif
    for (place = 0; place < sizeof pattern; place++) {
        pattern[place] = character(place);
    }
    printf("ready: sink %u, source %u, echo %u\n", sink_port, source_port, echo_port);
    fflush(stdout);
    for (;;) {
        fd_set readable, writable;
        struct timeval patience;
        int service, highest = sink_udp > echo_udp ? sink_udp : echo_udp;
        FD_ZERO(&readable);
        FD_ZERO(&writable);
        FD_SET(sink_udp, &readable);
        FD_SET(echo_udp, &readable);
        /* Who finds no place waits in the listening queue; it must not keep this loop awake. */
        for (service = 0; service < SERVICES && free_place() < LINERATE_CONNECTIONS; service++) {
            FD_SET(streams[service], &readable);
            highest = streams[service] > highest ? streams[service] : highest;
        }
        for (place = 0; place < LINERATE_CONNECTIONS; place++) {
            struct connection *it = &connections[place];
            if (it->socket < 0) {
                continue;
            }
            highest = it->socket > highest ? it->socket : highest;
            if (it->service == ECHO && it->waiting > 0) {
                FD_SET(it->socket, &writable);
            } else {
                FD_SET(it->socket, &readable);
            }
            if (it->service == SOURCE) {
                FD_SET(it->socket, &writable);
            }
        }
        patience.tv_sec = 0;
        patience.tv_usec = 250000;
        if (select(highest + 1, &readable, &writable, NULL, &patience) < 0) {
            if (errno == EINTR) {
                continue;
            }
            return 1;
        }
        /* Connections before listeners: a new one must not be taken for an old number's. */
        for (place = 0; place < LINERATE_CONNECTIONS; place++) {
            struct connection *it = &connections[place];
            int can_read, can_write;
            if (it->socket < 0) {
                continue;
            }
            can_read = FD_ISSET(it->socket, &readable);
            can_write = FD_ISSET(it->socket, &writable);
            if (it->service == SINK && can_read) {
                sink_stream(it);
            } else if (it->service == ECHO && (can_read || can_write)) {
                echo_stream(it, can_read);
            } else if (it->service == SOURCE) {
                if (can_read) {
                    source_heard(it);
                }
                if (can_write && it->socket >= 0) {
                    source_stream(it);
                }
            }
        }
        for (service = 0; service < SERVICES; service++) {
            if (FD_ISSET(streams[service], &readable)) {
                take(streams[service], (enum service)service);
            }
        }
        if (FD_ISSET(sink_udp, &readable)) {
            sink_datagrams(sink_udp);
        }
        if (FD_ISSET(echo_udp, &readable)) {
            echo_datagrams(echo_udp, echo_port);
        }
        end_silent_datagrams();
        end_idle_connections();
    }
}

#ifndef LINERATE_NO_MAIN
int main(int count, char **words)
{
    unsigned ports[SERVICES] = {9, 19, 7};
    int place;
    for (place = 1; place < count; place++) {
        char *end = words[place];
        unsigned long port = strtoul(words[place], &end, 10);
        if (place > SERVICES || *end != '\0' || port == 0 || port > 65535) {
            printf("usage: %s [SINK-PORT [SOURCE-PORT [ECHO-PORT]]]   9, 19 and 7 otherwise\n", words[0]);
            return 2;
        }
        ports[place - 1] = (unsigned)port;
    }
    return linerate_target(ports[SINK], ports[SOURCE], ports[ECHO]);
}
#endif
