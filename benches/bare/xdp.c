/* Lower limit of AF_XDP: frames are forwarded in place, in a UMEM shared by the sockets, in bursts of 32.
 *     xdp io IN OUT MILLISECONDS    forwards in both directions between two interfaces; prints the pps given to OUT
 *     xdp echo IN                   prints READY, then returns each datagram to its sender */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1024, FILL = 2 * RING, SLOT = 2048, BURST = 32, PAGE = 2 << 20 };
struct ring { unsigned *produced, *consumed, at; void *entries; };
struct port { int sock; struct ring fill, done, in, out; };
static char *umem;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static unsigned load(unsigned *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void store(unsigned *word, unsigned at) { __atomic_store_n(word, at, __ATOMIC_RELEASE); }
static long check(long result, const char *what) {
    if (result < 0) perror(what), exit(1);
    return result;
}

/* Setup, up to `pass`. Ring sizes and bind flags are those of the port `xdp:`. */
static struct ring ring(int sock, int which, unsigned size, off_t page, struct xdp_ring_offset at, size_t each) {
    check(setsockopt(sock, SOL_XDP, which, &size, sizeof size), "ring");
    char *base = mmap(0, at.desc + size * each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, sock, page);
    check(base == MAP_FAILED ? -1 : 0, "map");
    return (struct ring){(void *)(base + at.producer), (void *)(base + at.consumer), 0, base + at.desc};
}
static int bpf(int command, union bpf_attr attributes) { return check(syscall(SYS_bpf, command, &attributes, sizeof attributes), "bpf"); }

/* Redirects all frames of an interface to a socket by a program in the driver, until this process ends. */
static void feed(int interface, int sock) {
    int zero = 0, map = bpf(BPF_MAP_CREATE, (union bpf_attr){
        .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = sizeof zero, .value_size = sizeof sock, .max_entries = 1});
    struct bpf_insn code[] = {
        {BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index), 0},
        {BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map}, {0},
        {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS},
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},
        {BPF_JMP | BPF_EXIT},
    };
    int program = bpf(BPF_PROG_LOAD, (union bpf_attr){.prog_type = BPF_PROG_TYPE_XDP,
        .insn_cnt = sizeof code / sizeof *code, .insns = (uintptr_t)code, .license = (uintptr_t)"GPL"});
    bpf(BPF_LINK_CREATE, (union bpf_attr){.link_create = {
        .prog_fd = program, .target_ifindex = interface, .attach_type = BPF_XDP, .flags = XDP_FLAGS_DRV_MODE}});
    bpf(BPF_MAP_UPDATE_ELEM, (union bpf_attr){.map_fd = map, .key = (uintptr_t)&zero, .value = (uintptr_t)&sock});
}

/* Opens a socket on an interface, with the frames from `first` on in its fill ring. */
static struct port up(const char *name, uint64_t first) {
    int interface = if_nametoindex(name), sock = check(socket(AF_XDP, SOCK_RAW, 0), "socket");
    struct xdp_umem_reg memory = {.addr = (uintptr_t)umem, .len = 2 * FILL * SLOT, .chunk_size = SLOT};
    struct xdp_mmap_offsets at;
    check(setsockopt(sock, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory), "memory");
    check(getsockopt(sock, SOL_XDP, XDP_MMAP_OFFSETS, &at, &(socklen_t){sizeof at}), "offsets");
    struct port port = {sock,
        ring(sock, XDP_UMEM_FILL_RING, FILL, XDP_UMEM_PGOFF_FILL_RING, at.fr, sizeof(uint64_t)),
        ring(sock, XDP_UMEM_COMPLETION_RING, RING, XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, sizeof(uint64_t)),
        ring(sock, XDP_RX_RING, RING, XDP_PGOFF_RX_RING, at.rx, sizeof(struct xdp_desc)),
        ring(sock, XDP_TX_RING, RING, XDP_PGOFF_TX_RING, at.tx, sizeof(struct xdp_desc))};
    uint64_t *fill = port.fill.entries;
    for (; port.fill.at < FILL; port.fill.at++) fill[port.fill.at] = (first + port.fill.at) * SLOT;
    store(port.fill.produced, port.fill.at);
    struct sockaddr_xdp where = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_USE_NEED_WAKEUP, .sxdp_ifindex = interface};
    check(bind(sock, (void *)&where, sizeof where), "bind");
    feed(interface, sock);
    return port;
}

/* System call without the C library, for the reason given in tap.c. A kick that fails with EAGAIN is repeated with the next frames. */
static inline __attribute__((always_inline)) void kick(int sock) {
#ifdef __x86_64__
    register long flags __asm__("r10") = MSG_DONTWAIT, to __asm__("r8") = 0, bytes __asm__("r9") = 0;
    long call = SYS_sendto;
    __asm__ volatile("syscall" : "+a"(call) : "D"((long)sock), "S"(0L), "d"(0L), "r"(flags), "r"(to), "r"(bytes)
                     : "rcx", "r11", "memory");
#else
    send(sock, 0, 0, MSG_DONTWAIT);
#endif
}

static void swap(char *one, char *other, size_t bytes) {
    char temporary[6];
    memcpy(temporary, one, bytes), memcpy(one, other, bytes), memcpy(other, temporary, bytes);
}

/* One poll. Completed frames return to the fill ring of the socket that received them. */
static inline __attribute__((always_inline)) unsigned pass(struct port *from, struct port *to, int is_echo) {
    struct xdp_desc *in = from->in.entries, *out = to->out.entries;
    uint64_t *done = to->done.entries, *fill = from->fill.entries;
    unsigned received = load(from->in.produced) - from->in.at, pending = to->out.at - load(to->out.consumed);
    if (received > BURST) received = BURST;
    if (received > RING - pending) received = RING - pending;
    for (unsigned i = 0; i < received; i++) {
        struct xdp_desc frame = in[from->in.at++ % RING];
        char *bytes = umem + frame.addr;
        if (is_echo) swap(bytes, bytes + 6, 6), swap(bytes + 26, bytes + 30, 4), swap(bytes + 34, bytes + 36, 2);
        out[to->out.at++ % RING] = frame;
    }
    if (received) store(from->in.consumed, from->in.at), store(to->out.produced, to->out.at);
    if (received || pending) kick(to->sock);
    unsigned completed = load(to->done.produced) - to->done.at;
    for (unsigned i = 0; i < completed; i++) fill[from->fill.at++ % FILL] = done[to->done.at++ % RING];
    if (completed) store(to->done.consumed, to->done.at), store(from->fill.produced, from->fill.at);
    return received;
}

int main(int argc, char **argv) {
    int is_echo = argc == 3 && !strcmp(argv[1], "echo");
    if (!is_echo && (argc < 5 || strcmp(argv[1], "io"))) return 2;
    umem = aligned_alloc(PAGE, 2 * FILL * SLOT);
    if (!umem) return 2;
    madvise(umem, 2 * FILL * SLOT, MADV_HUGEPAGE);
    memset(umem, 0, 2 * FILL * SLOT);
    struct port near = up(argv[2], 0);
    if (is_echo) puts("READY"), fflush(stdout);
    while (is_echo) pass(&near, &near, 1);
    struct port far = up(argv[3], FILL);
    double time = atoi(argv[4]) / 1e3, from = 0, end = now() + 0.2 + time, then;
    unsigned long count = 0;
    for (unsigned polls = 0;;) {
        count += pass(&near, &far, 0), pass(&far, &near, 0);
        if (++polls & 1023) continue;
        if ((then = now()) > end) return printf("pps=%.0f\n", count / (then - from)), 0;
        if (!from && then > end - time) from = then, count = 0;
    }
}
