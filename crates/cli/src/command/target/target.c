/*
 * Server for `linerate` to build into a device: sink, source and echo over BSD sockets.
 *
 *   sink    discard (RFC 863)   TCP and UDP   linerate throughput DEVICE --peer discard [-u]
 *   source  chargen (RFC 864)   TCP           linerate throughput DEVICE --peer chargen -R
 *   echo    echo (RFC 862)      TCP and UDP   linerate latency DEVICE --peer echo [-u]
 *
 * One thread, one select loop, static memory, no allocation. The sink prints its counters when a flow
 * has been silent for a second; `--far-report` reads them from the device's console:
 *
 *   linerate throughput DEVICE --peer discard -u -b 10M \
 *     --far-report 'sleep 2; tail -n 1 console.log,(?P<bytes>\d+) bytes in (?P<packets>\d+) packets'
 *
 * On a system with POSIX sockets: cc -std=c99 -O2 -o target target.c && ./target
 * With lwIP: define LINERATE_LWIP and LINERATE_NO_MAIN, and call linerate_target(9, 19, 7) from a
 * separate task. On a system without clock_gettime, define LINERATE_NOW_NS() as a function that returns
 * the nanoseconds of a monotonic clock as unsigned 64-bit.
 *
 * The echo responds to any sender: use it only on trusted networks.
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

/* Bytes of the shared buffer: must be larger than the largest datagram to be measured. A datagram that
 * fills it may be truncated: the sink reports it, and the echo does not respond to it. */
#ifndef LINERATE_BUFFER_BYTES
#define LINERATE_BUFFER_BYTES 8192
#endif

/* Maximum number of connections; more wait in the listen queue. */
#ifndef LINERATE_CONNECTIONS
#define LINERATE_CONNECTIONS 4
#endif

/* Seconds after which an idle connection is closed: its peer may be lost. */
#ifndef LINERATE_IDLE_S
#define LINERATE_IDLE_S 60
#endif

/* Bytes of an echo connection that are not sent yet. */
#ifndef LINERATE_ECHO_BYTES
#define LINERATE_ECHO_BYTES 2048
#endif

/* 1: UDP responses carry the receive time of the request and their send time (bytes 16 to 31). */
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

/* Receive time: a driver with receive timestamps can provide it; the default is the time of the read. */
#ifndef LINERATE_ARRIVED_NS
#define LINERATE_ARRIVED_NS() LINERATE_NOW_NS()
#endif

/* A closed peer must be an error of the call, not a signal; without this flag the signal is ignored. */
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#define LINERATE_IGNORES_SIGPIPE 1
#endif

enum service { SINK, SOURCE, ECHO, SERVICES };

struct connection {
    int socket; /* -1: free */
    enum service service;
    uint64_t bytes;
    uint64_t started_ns;
    uint64_t active_ns; /* last send or receive */
    size_t offset; /* source: position in the pattern; echo: first pending byte */
    size_t pending_bytes; /* echo: number of pending bytes */
    unsigned char pending[LINERATE_ECHO_BYTES];
};

static unsigned char buffer[LINERATE_BUFFER_BYTES];
static struct connection connections[LINERATE_CONNECTIONS];

/* Counters of the current UDP flow. */
static uint64_t udp_bytes, udp_packets, udp_full, udp_first_ns, udp_last_ns;

/* Silence that ends a UDP flow. */
static const uint64_t SILENCE_NS = 1000000000u;

static void print_count(const char *what, uint64_t bytes, uint64_t packets, uint64_t ns)
{
    /* Small C libraries may lack printf of 64-bit values: large numbers are printed in two parts. */
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

static int open_socket(int kind, unsigned port)
{
    struct sockaddr_in address;
    int yes = 1;
    int fd = socket(AF_INET, kind, 0);
    if (fd < 0) {
        return -1;
    }
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons((uint16_t)port);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0
        || (kind == SOCK_STREAM && listen(fd, LINERATE_CONNECTIONS) != 0)
        || set_nonblocking(fd) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static void finish(struct connection *conn)
{
    if (conn->service == SINK) {
        print_count("sink tcp", conn->bytes, 0, LINERATE_NOW_NS() - conn->started_ns);
    }
    (void)close(conn->socket);
    conn->socket = -1;
}

/* Index of a free connection; LINERATE_CONNECTIONS if there is none. */
static size_t free_slot(void)
{
    size_t slot;
    for (slot = 0; slot < LINERATE_CONNECTIONS; slot++) {
        if (connections[slot].socket < 0) {
            break;
        }
    }
    return slot;
}

static void accept_connection(int listener, enum service service)
{
    int yes = 1;
    size_t slot = free_slot();
    int fd;
    if (slot == LINERATE_CONNECTIONS) {
        return;
    }
    fd = accept(listener, NULL, NULL);
    if (fd < 0) {
        return;
    }
    if (fd >= FD_SETSIZE || set_nonblocking(fd) != 0) {
        (void)close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    memset(&connections[slot], 0, sizeof connections[slot]);
    connections[slot].socket = fd;
    connections[slot].service = service;
    connections[slot].started_ns = LINERATE_NOW_NS();
    connections[slot].active_ns = connections[slot].started_ns;
}

/* Returns 1 while the connection is open; a call that would block does not end it. */
static int is_open(struct connection *conn, long moved)
{
    if (moved > 0) {
        conn->active_ns = LINERATE_NOW_NS();
        return 1;
    }
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static void sink_stream(struct connection *conn)
{
    long received = (long)recv(conn->socket, buffer, sizeof buffer, 0);
    if (!is_open(conn, received)) {
        finish(conn);
    } else if (received > 0) {
        conn->bytes += (uint64_t)received;
    }
}

/* Characters of RFC 864: lines of 72 of the 95 printable ones, each shifted by one, and CR LF. */
static unsigned char character(size_t offset)
{
    size_t line = offset / 74 % 95, column = offset % 74;
    if (column >= 72) {
        return column == 72 ? '\r' : '\n';
    }
    return (unsigned char)(' ' + (line + column) % 95);
}

static unsigned char pattern[74 * 95 * 2];

static void source_stream(struct connection *conn)
{
    /* The pattern is stored twice, so that a full half follows any offset in the first one. */
    long sent = (long)send(conn->socket, pattern + conn->offset, sizeof pattern / 2, MSG_NOSIGNAL);
    if (!is_open(conn, sent)) {
        finish(conn);
    } else if (sent > 0) {
        conn->offset = (conn->offset + (size_t)sent) % (sizeof pattern / 2);
    }
}

/* Discards input of a source's client; end of file ends the connection. */
static void source_input(struct connection *conn)
{
    long received = (long)recv(conn->socket, buffer, sizeof buffer, 0);
    if (!is_open(conn, received)) {
        finish(conn);
    }
}

static void echo_stream(struct connection *conn, int readable)
{
    if (readable && conn->pending_bytes == 0) {
        long received = (long)recv(conn->socket, conn->pending, sizeof conn->pending, 0);
        if (!is_open(conn, received)) {
            finish(conn);
            return;
        }
        if (received > 0) {
            conn->offset = 0;
            conn->pending_bytes = (size_t)received;
        }
    }
    if (conn->pending_bytes > 0) {
        long sent = (long)send(conn->socket, conn->pending + conn->offset, conn->pending_bytes, MSG_NOSIGNAL);
        if (!is_open(conn, sent)) {
            finish(conn);
        } else if (sent > 0) {
            conn->offset += (size_t)sent;
            conn->pending_bytes -= (size_t)sent;
        }
    }
}

static void sink_datagrams(int socket)
{
    int burst;
    for (burst = 0; burst < 64; burst++) {
        long received = (long)recv(socket, buffer, sizeof buffer, 0);
        uint64_t now;
        if (received < 0) {
            return;
        }
        now = LINERATE_NOW_NS();
        if (udp_packets == 0) {
            udp_first_ns = now;
        }
        udp_bytes += (uint64_t)received;
        udp_packets++;
        udp_full += (size_t)received == sizeof buffer;
        udp_last_ns = now;
    }
}

static void end_silent_datagrams(void)
{
    if (udp_packets > 0 && LINERATE_NOW_NS() - udp_last_ns >= SILENCE_NS) {
        if (udp_full > 0) {
            printf("sink udp: %lu of these packets filled the buffer of %lu bytes and may be truncated: build with a "
                   "larger LINERATE_BUFFER_BYTES\n",
                   (unsigned long)udp_full, (unsigned long)sizeof buffer);
            fflush(stdout);
        }
        print_count("sink udp", udp_bytes, udp_packets, udp_last_ns - udp_first_ns);
        udp_bytes = 0;
        udp_packets = 0;
        udp_full = 0;
    }
}

static void end_idle_connections(void)
{
    uint64_t now = LINERATE_NOW_NS();
    size_t slot;
    for (slot = 0; slot < LINERATE_CONNECTIONS; slot++) {
        struct connection *conn = &connections[slot];
        if (conn->socket >= 0 && now - conn->active_ns >= LINERATE_IDLE_S * (uint64_t)1000000000u) {
            finish(conn);
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

/* Returns 0 for ports whose services respond to anything, and for our own: a reply would loop. */
static int may_reply(unsigned port, unsigned own_port)
{
    return port != 0 && port != 7 && port != 13 && port != 17 && port != 19 && port != 37
        && port != own_port;
}

static void echo_datagrams(int socket, unsigned own_port)
{
    int burst;
    for (burst = 0; burst < 16; burst++) {
        struct sockaddr_in from;
        socklen_t address_bytes = sizeof from;
        long received = (long)recvfrom(socket, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &address_bytes);
        if (received < 0) {
            return;
        }
#if LINERATE_STAMPS
        if (received >= 32) {
            put_time(buffer + 16, LINERATE_ARRIVED_NS());
            put_time(buffer + 24, LINERATE_NOW_NS());
        }
#endif
        if ((size_t)received < sizeof buffer && may_reply(ntohs(from.sin_port), own_port)) {
            (void)sendto(socket, buffer, (size_t)received, 0, (struct sockaddr *)&from, address_bytes);
        }
    }
}

/* Serves until a fatal error; returns 1 if a port cannot be opened. */
int linerate_target(unsigned sink_port, unsigned source_port, unsigned echo_port)
{
    int streams[SERVICES], sink_udp, echo_udp;
    size_t slot;
    streams[SINK] = open_socket(SOCK_STREAM, sink_port);
    streams[SOURCE] = open_socket(SOCK_STREAM, source_port);
    streams[ECHO] = open_socket(SOCK_STREAM, echo_port);
    sink_udp = open_socket(SOCK_DGRAM, sink_port);
    echo_udp = open_socket(SOCK_DGRAM, echo_port);
    if (streams[SINK] < 0 || streams[SOURCE] < 0 || streams[ECHO] < 0 || sink_udp < 0
        || echo_udp < 0) {
        printf("cannot open a port: sink %u, source %u, echo %u\n", sink_port, source_port,
               echo_port);
        return 1;
    }
    for (slot = 0; slot < LINERATE_CONNECTIONS; slot++) {
        connections[slot].socket = -1;
    }
#ifdef LINERATE_IGNORES_SIGPIPE
#ifdef SIGPIPE
    (void)signal(SIGPIPE, SIG_IGN);
#endif
#endif
    for (slot = 0; slot < sizeof pattern; slot++) {
        pattern[slot] = character(slot);
    }
    printf("ready: sink %u, source %u, echo %u\n", sink_port, source_port, echo_port);
    fflush(stdout);
    for (;;) {
        fd_set readable, writable;
        struct timeval timeout;
        int service, highest = sink_udp > echo_udp ? sink_udp : echo_udp;
        FD_ZERO(&readable);
        FD_ZERO(&writable);
        FD_SET(sink_udp, &readable);
        FD_SET(echo_udp, &readable);
        /* Without a free connection, clients stay in the listen queue and must not wake this loop. */
        for (service = 0; service < SERVICES && free_slot() < LINERATE_CONNECTIONS; service++) {
            FD_SET(streams[service], &readable);
            highest = streams[service] > highest ? streams[service] : highest;
        }
        for (slot = 0; slot < LINERATE_CONNECTIONS; slot++) {
            struct connection *conn = &connections[slot];
            if (conn->socket < 0) {
                continue;
            }
            highest = conn->socket > highest ? conn->socket : highest;
            if (conn->service == ECHO && conn->pending_bytes > 0) {
                FD_SET(conn->socket, &writable);
            } else {
                FD_SET(conn->socket, &readable);
            }
            if (conn->service == SOURCE) {
                FD_SET(conn->socket, &writable);
            }
        }
        timeout.tv_sec = 0;
        timeout.tv_usec = 250000;
        if (select(highest + 1, &readable, &writable, NULL, &timeout) < 0) {
            if (errno == EINTR) {
                continue;
            }
            return 1;
        }
        /* Connections before listeners: a new connection may reuse the number of a closed one. */
        for (slot = 0; slot < LINERATE_CONNECTIONS; slot++) {
            struct connection *conn = &connections[slot];
            int can_read, can_write;
            if (conn->socket < 0) {
                continue;
            }
            can_read = FD_ISSET(conn->socket, &readable);
            can_write = FD_ISSET(conn->socket, &writable);
            if (conn->service == SINK && can_read) {
                sink_stream(conn);
            } else if (conn->service == ECHO && (can_read || can_write)) {
                echo_stream(conn, can_read);
            } else if (conn->service == SOURCE) {
                if (can_read) {
                    source_input(conn);
                }
                if (can_write && conn->socket >= 0) {
                    source_stream(conn);
                }
            }
        }
        for (service = 0; service < SERVICES; service++) {
            if (FD_ISSET(streams[service], &readable)) {
                accept_connection(streams[service], (enum service)service);
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
int main(int argc, char **argv)
{
    unsigned ports[SERVICES] = {9, 19, 7};
    int slot;
    for (slot = 1; slot < argc; slot++) {
        char *end = argv[slot];
        unsigned long port = strtoul(argv[slot], &end, 10);
        if (slot > SERVICES || *end != '\0' || port == 0 || port > 65535) {
            printf("usage: %s [SINK-PORT [SOURCE-PORT [ECHO-PORT]]]   default 9, 19, 7\n", argv[0]);
            return 2;
        }
        ports[slot - 1] = (unsigned)port;
    }
    return linerate_target(ports[SINK], ports[SOURCE], ports[ECHO]);
}
#endif
