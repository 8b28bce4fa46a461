/* Lower limit of requests and responses over UDP: only the time is recorded, nothing is checked.
 * The sockets of both ends are connected, as in linerate.
 *
 *   pingpong server ADDRESS PORT BYTES block|spin
 *   pingpong client ADDRESS PORT BYTES block|spin MILLISECONDS    prints p50_ns and the count */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { SAMPLES = 1 << 22, BUFFER = 65536 };
static uint32_t samples[SAMPLES];
static char buffer[BUFFER];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))}, peer;
    socklen_t length = sizeof peer;
    size_t bytes = atoi(argv[4]), count = 0;
    int flags = strcmp(argv[5], "spin") ? 0 : MSG_DONTWAIT, fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr *to = (struct sockaddr *)&address;
    if (bytes > BUFFER || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
    if (!strcmp(argv[1], "server")) {
        if (bind(fd, to, sizeof address)) return perror("bind"), 1;
        puts("READY"), fflush(stdout);
        if (recvfrom(fd, buffer, BUFFER, MSG_PEEK, (struct sockaddr *)&peer, &length) < 0) return 1;
        if (connect(fd, (struct sockaddr *)&peer, length)) return perror("connect"), 1;
        for (;;) {
            ssize_t got = recvfrom(fd, buffer, BUFFER, flags, NULL, NULL);
            if (got >= 0) sendto(fd, buffer, got, flags, NULL, 0);
        }
    }
    if (argc < 7 || connect(fd, to, sizeof address)) return perror("connect"), 1;
    uint64_t sent = now(), end = sent + (uint64_t)atoi(argv[6]) * 1000000;
    while (sent < end && count < SAMPLES) {
        sent = now();
        if (sendto(fd, buffer, bytes, flags, NULL, 0) < 0) return perror("sendto"), 1;
        while (recvfrom(fd, buffer, BUFFER, flags, NULL, NULL) < 0) {}
        samples[count++] = (uint32_t)(now() - sent);
    }
    qsort(samples, count, sizeof *samples, ascending);
    printf("p50_ns=%u count=%zu\n", samples[count / 2], count);
}
