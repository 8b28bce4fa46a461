/* Lower limit of a request and its response between two processes with shared memory. Each side copies its frame in and
 * sets a counter in the frame's first cache line; the other side polls that line only, and copies the frame out.
 *     exchange BYTES CPU CPU MILLISECONDS    prints p50_ns */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, SLOT = 128 - sizeof(atomic_uint), MAX_NS = 1 << 16 };
struct slot { _Alignas(128) atomic_uint sequence; char frame[SLOT]; };
static unsigned times[MAX_NS];
static char local[SLOT];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    size_t bytes = atoi(argv[1]), bytes_mapped = 2 * SLOTS * sizeof(struct slot);
    struct slot *slots = mmap(0, bytes_mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bytes > SLOT || slots == MAP_FAILED) return 2;
    memset(slots, 0, bytes_mapped);
    int responds = fork() == 0;
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(atoi(argv[responds ? 3 : 2]), &cpu);
    sched_setaffinity(0, sizeof cpu, &cpu);
    if (responds) prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t begin = now() + 200000000, end = begin + atoi(argv[4]) * 1000000ull, then = 0;
    unsigned count = 0, p50 = 0, sum = 0;
    for (unsigned at = 1; then < end; at++) {
        uint64_t sent = responds ? 0 : now();
        for (int step = 0; step < 2; step++) {
            /* Requests use the first half of the slots, responses the second. */
            struct slot *slot = slots + (step ? SLOTS : 0) + at % SLOTS;
            if (step == responds) {
                memcpy(slot->frame, local, bytes);
                atomic_store_explicit(&slot->sequence, at, memory_order_release);
            } else {
                while (atomic_load_explicit(&slot->sequence, memory_order_acquire) != at) {}
                memcpy(local, slot->frame, bytes);
                __asm__ volatile("" : : "r"(local) : "memory");
            }
        }
        if (!responds && (then = now()) >= begin) count++, times[then - sent < MAX_NS ? then - sent : MAX_NS - 1]++;
    }
    while ((sum += times[p50]) <= count / 2) p50++;
    return printf("p50_ns=%u count=%u\n", p50, count), 0;
}
