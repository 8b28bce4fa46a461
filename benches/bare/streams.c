/* Bare transfer over many TCP streams: one thread with one epoll loop per end, and only bytes are
 * counted. Writes and reads have the sizes of linerate's.
 *
 *   streams sink   ADDRESS PORT STREAMS MILLISECONDS    prints bps, counted once all streams are connected
 *   streams source ADDRESS PORT STREAMS CONTROL         sends until the other end closes */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { EVENTS = 256, BUFFER = 1 << 20, MIN_CALL = 256 << 10, TOTAL = 64 << 20 };
static char buffer[BUFFER];
static struct epoll_event ready[EVENTS];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    struct rlimit files = {0, 0};
    int sinks = !strcmp(argv[1], "sink"), streams = atoi(argv[4]), one = 1, listener = -1;
    if (streams < 1 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    size_t bytes = TOTAL / streams < MIN_CALL ? MIN_CALL : TOTAL / streams > BUFFER ? BUFFER : TOTAL / streams;
    memset(buffer, 0xa5, BUFFER); /* pages never written would all map to the zero page */
    int epoll = epoll_create1(0);
    if (sinks) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) return 1;
        puts("READY"), fflush(stdout);
    }
    for (int n = 0; n < streams; n++) {
        int fd = sinks ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event event = {.events = sinks ? EPOLLIN : EPOLLOUT, .data.fd = fd};
        if (!sinks) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, argv[5], strlen(argv[5]));
        if (fd < 0 || (!sinks && connect(fd, (struct sockaddr *)&address, sizeof address)))
            return perror("connect"), 1;
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) return perror("epoll_ctl"), 1;
    }
    uint64_t bytes_done = 0, start = now(), end = sinks ? start + (uint64_t)atoi(argv[5]) * 1000000 : UINT64_MAX;
    while (now() < end)
        for (int n = epoll_wait(epoll, ready, EVENTS, 100); n-- > 0;) {
            ssize_t got = sinks ? recv(ready[n].data.fd, buffer, MIN_CALL, MSG_DONTWAIT)
                                : send(ready[n].data.fd, buffer, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (got > 0) bytes_done += got;
            else if (!sinks && (ready[n].events & (EPOLLERR | EPOLLHUP))) return 0;
        }
    return printf("bps=%.0f\n", bytes_done * 8e9 / (now() - start)) < 0;
}
