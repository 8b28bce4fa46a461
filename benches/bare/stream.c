/* Bare TCP stream: writes at one end and reads at the other, both touch every byte, and only bytes
 * and the time are counted.
 *
 *   stream sink   ADDRESS PORT BYTES block|spin    prints the received bps
 *   stream source ADDRESS PORT BYTES MILLISECONDS CONTROL */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    struct sockaddr *at = (struct sockaddr *)&address;
    size_t bytes = strtoul(argv[4], NULL, 10);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    char *buffer = calloc(1, bytes);
    if (!buffer || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
    memset(buffer, 'x', bytes);
    if (!strcmp(argv[1], "source")) {
        if (argc < 7) return 2;
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, argv[6], strlen(argv[6])))
            return perror("TCP_CONGESTION"), 1;
        if (connect(fd, at, sizeof address)) return perror("connect"), 1;
        double end = now() + atof(argv[5]) / 1e3;
        while (now() < end)
            if (write(fd, buffer, bytes) < 0) return perror("write"), 1;
        return 0;
    }
    int flags = strcmp(argv[5], "spin") ? 0 : MSG_DONTWAIT;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at, sizeof address) || listen(fd, 1)) return perror("listen"), 1;
    puts("READY"), fflush(stdout);
    int flow = accept(fd, NULL, NULL);
    uint64_t total = 0;
    double first = 0, last = 0;
    for (;;) {
        ssize_t got = recv(flow, buffer, bytes, flags);
        if (got == 0) break;
        if (got < 0 && errno != EAGAIN) return perror("recv"), 1;
        if (got <= 0) continue;
        last = now();
        if (!first) first = last;
        total += (uint64_t)got;
    }
    printf("bps=%.0f\n", (double)total * 8 / (last - first));
}
