/* The least there is between two ends that ask and answer over UDP: nothing is checked or recorded
 * but the time. Connected sockets at both ends, as linerate's are.
 *
 *   pingpong answer ADDRESS PORT BYTES block|spin
 *   pingpong ask    ADDRESS PORT BYTES block|spin MILLISECONDS    prints p50_ns and the count */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { SAMPLES = 1 << 22, ROOM = 65536 };
static uint32_t samples[SAMPLES];
static char room[ROOM];

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
    if (bytes > ROOM || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
    if (!strcmp(argv[1], "answer")) {
        if (bind(fd, to, sizeof address)) return perror("bind"), 1;
        puts("READY"), fflush(stdout);
        if (recvfrom(fd, room, ROOM, MSG_PEEK, (struct sockaddr *)&peer, &length) < 0) return 1;
        if (connect(fd, (struct sockaddr *)&peer, length)) return perror("connect"), 1;
        for (;;) {
            ssize_t got = recvfrom(fd, room, ROOM, flags, NULL, NULL);
            if (got >= 0) sendto(fd, room, got, flags, NULL, 0);
        }
    }
    if (argc < 7 || connect(fd, to, sizeof address)) return perror("connect"), 1;
    uint64_t asked = now(), end = asked + (uint64_t)atoi(argv[6]) * 1000000;
    while (asked < end && count < SAMPLES) {
        asked = now();
        if (sendto(fd, room, bytes, flags, NULL, 0) < 0) return perror("sendto"), 1;
        while (recvfrom(fd, room, ROOM, flags, NULL, NULL) < 0) {}
        samples[count++] = (uint32_t)(now() - asked);
    }
    qsort(samples, count, sizeof *samples, ascending);
    printf("p50_ns=%u count=%zu\n", samples[count / 2], count);
}
