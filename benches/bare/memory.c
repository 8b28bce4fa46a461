/* Lower limit of frames between two processes with shared memory: one copies each byte in, the other one out,
 * in bursts of 32.    memory BYTES CPU CPU MILLISECONDS    prints the received pps */
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

enum { SLOTS = 1024, SLOT = 1600, BURST = 32, PAGE = 2 << 20 };
struct ring {
    _Alignas(128) atomic_uint tail;
    _Alignas(128) atomic_uint head;
    _Alignas(128) char slots[SLOTS][SLOT];
};
static char local[BURST][SLOT];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    size_t bytes = atoi(argv[1]);
    char *mapping = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct ring *ring = (void *)(((uintptr_t)mapping + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    if (bytes > SLOT || mapping == MAP_FAILED) return 2;
    madvise(ring, PAGE, MADV_HUGEPAGE);
    memset(ring, 0, sizeof *ring);
    int sends = fork() == 0;
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(atoi(argv[sends ? 2 : 3]), &cpu);
    sched_setaffinity(0, sizeof cpu, &cpu);
    if (sends) prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsigned at = 0, other = 0, count = 0;
    double time = atoi(argv[4]) / 1e3, from = 0, end = now() + 0.2 + time;
    for (;;) {
        while (sends && at - other > SLOTS - BURST) other = atomic_load_explicit(&ring->head, memory_order_acquire);
        while (!sends && other == at) other = atomic_load_explicit(&ring->tail, memory_order_acquire);
        for (int i = 0; i < BURST; i++) {
            char *slot = ring->slots[(at + i) % SLOTS];
            memcpy(sends ? slot : local[i], sends ? local[i] : slot, bytes);
            __asm__ volatile("" ::: "memory");
        }
        atomic_store_explicit(sends ? &ring->tail : &ring->head, at += BURST, memory_order_release);
        if (sends || ++count & 1023) continue;
        double then = now();
        if (!from && then > end - time) from = then, count = 0;
        if (then > end) return printf("pps=%.0f\n", count * (double)BURST / (then - from)), 0;
    }
}
