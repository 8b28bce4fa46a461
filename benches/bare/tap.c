/* The least that a host behind a tap costs: without a stack.
 *     tap echo NAME ADDRESS CPU                            prints READY, then turns each datagram round where it lies
 *     tap stream NAME ADDRESS FAR CPU CPU MILLISECONDS     writes segments of 64 KB as they lie in memory, for the kernel
 *         to cut and sum, as far as the window of its socket goes, which reads on the other core: bps
 *     tap copies NAME ADDRESS FAR CPU CPU MILLISECONDS     the same; each segment is copied from a program's memory into a ring of
 *         1 MB, and from there to where it is written from: bps
 *     tap take NAME ADDRESS FAR CPU CPU MILLISECONDS CC     reads segments as the kernel's socket writes them on the other core,
 *         with that congestion control, and acknowledges every second one and the last that is there: bps
 *     tap send NAME ADDRESS CPU MILLISECONDS               writes the same UDP datagram of 64 B again and again: pps */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SYN = 2, ACK = 16, EACH = 1460, MOST = 44 * EACH, HEAD = 10 + 14, TCP = HEAD + 20, UDP = 17 };
static const unsigned char own[6] = {2, 0, 0, 0, 0, 9};
static unsigned char f[HEAD + 40 + MOST], in[1 << 17];
static int tap, scale, copies;
static uint32_t theirs;

/* The C library's functions around these cost up to 0.4 us (docs/METHOD.md#calls-without-a-wrapper); errors as it tells them. */
#ifdef __x86_64__
static long enter(long call, int file, const void *at, long bytes) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(call), "D"((long)file), "S"(at), "d"(bytes) : "rcx", "r11", "memory");
    return result < 0 ? errno = -result, -1 : result;
}
#define write(file, at, bytes) enter(1, file, at, bytes)
#define read(file, at, bytes) enter(0, file, at, bytes)
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void put(unsigned char *at, uint32_t value) { value = htonl(value), memcpy(at, &value, 4); }
static uint32_t get(const unsigned char *at) { uint32_t value; return memcpy(&value, at, 4), ntohl(value); }
static uint16_t sum(const unsigned char *at, int bytes, uint32_t total) {
    for (int i = 0; i < bytes; i += 2) total += at[i] << 8 | at[i + 1];
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return total;
}

/* A segment of what stands in f: the other side sums it, and cuts it where it is long. */
static void segment(int flags, uint32_t sequence, uint32_t acknowledged, int head, int bytes) {
    struct virtio_net_hdr *vnet = (void *)f;
    *vnet = (struct virtio_net_hdr){.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 34, .csum_offset = 16};
    if (bytes > EACH) vnet->gso_type = VIRTIO_NET_HDR_GSO_TCPV4, vnet->gso_size = EACH, vnet->hdr_len = 34 + head;
    unsigned char *ip = f + HEAD, *tcp = f + TCP;
    int length = 20 + head + bytes;
    ip[2] = length >> 8, ip[3] = length, ip[10] = ip[11] = 0;
    uint16_t check = ~sum(ip, 20, 0);
    ip[10] = check >> 8, ip[11] = check;
    put(tcp + 4, sequence), put(tcp + 8, acknowledged);
    tcp[12] = head << 2, tcp[13] = flags, tcp[14] = tcp[15] = 0xff;
    check = sum(ip + 12, 8, 6 + head + bytes);
    tcp[16] = check >> 8, tcp[17] = check;
    if (write(tap, f, HEAD + length) < 0) perror("write"), exit(1);
}

static int joined(const char *to, const char *control) {
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, to, &far.sin_addr);
    int sock = socket(AF_INET, SOCK_STREAM, 0);
    if (control && setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, control, strlen(control))) perror(control), exit(1);
    if (connect(sock, (void *)&far, sizeof far)) perror("connect"), exit(1);
    return sock;
}

static void source(const char *to, const char *control) {
    static char room[128 << 10];
    for (int sock = joined(to, control);;)
        if (write(sock, room, sizeof room) <= 0) perror("write"), exit(1);
}

static void sink(const char *to, double time) {
    int sock = joined(to, 0);
    static char room[1 << 20];
    double begin = now() + 0.2, then = 0, count = 0, from = 0;
    while ((then = now()) < begin + time) {
        ssize_t got = read(sock, room, sizeof room);
        if (got <= 0) perror("read"), exit(1);
        if (then < begin) continue;
        if (!from) from = then; else count += got;
    }
    printf("bps=%.0f\n", count * 8 / (then - from)), exit(0);
}

static void stay(const char *cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void up(const char *device, const char *own_address, int more) {
    struct ifreq name = {.ifr_flags = IFF_TAP | IFF_NO_PI | more}, address = {0};
    strncpy(name.ifr_name, device, IFNAMSIZ - 1);
    strncpy(address.ifr_name, device, IFNAMSIZ - 1);
    int sock = socket(AF_INET, SOCK_DGRAM, 0);
    tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &name)) perror("tap"), exit(1);
    if (more && ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) perror("offloads"), exit(1);
    struct sockaddr_in *at = (void *)&address.ifr_addr;
    at->sin_family = AF_INET;
    inet_pton(AF_INET, own_address, &at->sin_addr);
    if (ioctl(sock, SIOCSIFADDR, &address)) perror("address"), exit(1);
    inet_pton(AF_INET, "255.255.255.0", &at->sin_addr);
    if (ioctl(sock, SIOCSIFNETMASK, &address)) perror("netmask"), exit(1);
    name.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(sock, SIOCSIFFLAGS, &name)) perror("up"), exit(1);
}

static void swap(unsigned char *a, unsigned char *b, int bytes) {
    for (; bytes--; a++, b++) {
        unsigned char byte = *a;
        *a = *b, *b = byte;
    }
}

/* Sends a frame back to where it came from. Sums stay what they were: their words only change places. */
static void back(ssize_t bytes) {
    memcpy(in + 10, in + 16, 6), memcpy(in + 16, own, 6);
    if (write(tap, in, bytes) < 0) perror("write"), exit(1);
}

/* What comes next, ARP answered; nothing: -1. */
static ssize_t come(void) {
    ssize_t bytes = read(tap, in, sizeof in);
    if (bytes < 0 && errno != EAGAIN) perror("read"), exit(1);
    if (bytes < 52 || in[22] != 8 || in[23] != 6 || in[31] != 1) return bytes;
    in[31] = 2;
    swap(in + 32, in + 42, 10);
    memcpy(in + 32, own, 6);
    back(bytes);
    return -1;
}

static void echo(void) {
    puts("READY");
    for (fflush(stdout);;) {
        ssize_t bytes = come();
        if (bytes < 52 || in[22] != 8 || in[23] || in[33] != UDP) continue;
        swap(in + 36, in + 40, 4), swap(in + 44, in + 46, 2);
        back(bytes);
    }
}

/* To an address that is nobody's, as a generator's frames are: what the kernel does with them is the least it can. */
static void send_on(double time) {
    unsigned char frame[60] = {2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, UDP};
    put(frame + 26, 0xc6120001), put(frame + 30, 0xc6120002);
    frame[35] = frame[37] = 9, frame[39] = 26;
    uint16_t check = ~sum(frame + 14, 20, 0);
    frame[24] = check >> 8, frame[25] = check;
    double begin = now(), end = begin;
    long count = 0;
    for (; end < begin + time; end = now())
        for (int i = 0; i < 1000; i++, count++)
            if (write(tap, frame, sizeof frame) < 0) perror("write"), exit(1);
    printf("pps=%.0f\n", count / (end - begin));
}

/* A segment of TCP that came; one that asks for a connection is answered, with windows in steps of 32 bytes. */
static unsigned char *come_tcp(ssize_t got) {
    unsigned char *ip = in + HEAD, *tcp = in + TCP;
    if (got < 64 || in[22] != 8 || in[23] || ip[9] != 6) return 0;
    if (!(tcp[13] & SYN)) return tcp;
    for (int at = 20; at < tcp[12] >> 2; at += tcp[at] < 2 ? 1 : tcp[at + 1])
        if (tcp[at] == 3) scale = tcp[at + 2];
    memcpy(f + 10, in + 16, 6), memcpy(f + 16, own, 6);
    f[22] = 8, f[HEAD] = 0x45, f[HEAD + 6] = 0x40, f[HEAD + 8] = 64, f[HEAD + 9] = 6;
    memcpy(f + HEAD + 12, ip + 16, 4), memcpy(f + HEAD + 16, ip + 12, 4);
    memcpy(f + TCP, tcp + 2, 2), memcpy(f + TCP + 2, tcp, 2);
    memcpy(f + TCP + 20, "\2\4\5\264\3\3\5\0", 8);
    theirs = get(tcp + 4) + 1;
    segment(SYN | ACK, 0, theirs, 28, 0);
    return 0;
}

static void copy(uint32_t next) {
    /* Not all zeros: pages that nobody wrote are all the same one. */
    static unsigned char program[MOST] = {0xa5}, buffer[16 * MOST];
    unsigned char *place = buffer + next / MOST % 16 * MOST;
    if (copies) memcpy(place, program, MOST), memcpy(f + TCP + 20, place, MOST);
}

static void stream(void) {
    uint32_t next = 1, acknowledged = 1, edge = 0;
    double moved = now();
    for (int stands = 0;;) {
        ssize_t got = come();
        unsigned char *tcp = come_tcp(got);
        if (tcp) {
            uint32_t number = get(tcp + 8);
            if ((int32_t)(number - acknowledged) > 0) acknowledged = number, moved = now();
            edge = number + ((tcp[14] << 8 | tcp[15]) << scale), stands = 1;
        }
        if (stands && (int32_t)(edge - next) >= MOST) copy(next), segment(ACK, next, theirs, 20, MOST), next += MOST;
        else if (got >= 0) continue;
        else if (waitpid(-1, 0, WNOHANG) > 0) return;
        else if (stands && now() > moved + 0.05) next = acknowledged, moved = now();
    }
}

static void take(double time) {
    double begin = now() + 0.2, then = 0, count = 0, from = 0;
    for (int waits = 0; (then = now()) < begin + time;) {
        ssize_t got = come();
        unsigned char *tcp = come_tcp(got);
        int bytes = tcp ? (in[HEAD + 2] << 8 | in[HEAD + 3]) - 20 - (tcp[12] >> 4) * 4 : 0;
        if (bytes > 0 && get(tcp + 4) == theirs) {
            theirs += bytes;
            if (from) count += bytes;
            else if (then >= begin) from = then;
        }
        waits += bytes > 0;
        if (waits == 2 || (waits && got < 0)) segment(ACK, 1, theirs, 20, 0), waits = 0;
    }
    printf("bps=%.0f\n", count * 8 / (then - from));
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    copies = !strcmp(argv[1], "copies");
    int streams = copies || !strcmp(argv[1], "stream"), takes = !strcmp(argv[1], "take"), sends = !strcmp(argv[1], "send");
    if ((streams && argc < 8) || (takes && argc < 9) || (sends && argc < 6)) return 2;
    up(argv[2], argv[3], sends ? 0 : IFF_VNET_HDR);
    if ((streams || takes) && !fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL), stay(argv[6]);
        streams ? sink(argv[4], atoi(argv[7]) / 1e3) : source(argv[4], argv[8]);
    }
    stay(argv[streams || takes ? 5 : 4]);
    streams ? stream() : takes ? take(atoi(argv[7]) / 1e3) : sends ? send_on(atoi(argv[5]) / 1e3) : echo();
}
