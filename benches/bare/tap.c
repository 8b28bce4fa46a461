/* Lower limit of a host behind a tap: no stack, only the required headers. FAR is the host's address.
 *     tap echo NAME ADDRESS CPU                            prints READY, then returns each datagram in place
 *     tap stream NAME ADDRESS FAR CPU CPU MILLISECONDS     writes segments of 64 KB without a copy; the kernel segments
 *         and checksums them; limited by the window of its socket, which reads on the other core: bps
 *     tap copies NAME ADDRESS FAR CPU CPU MILLISECONDS     as stream, but copies each segment from a program's memory
 *         into a ring of 1 MB, and from there into the transmit buffer: bps
 *     tap take NAME ADDRESS FAR CPU CPU MILLISECONDS CC    reads the segments of a kernel socket that writes on the other
 *         core with this congestion control; acknowledges every second one and the last one available: bps
 *     tap send NAME ADDRESS CPU MILLISECONDS               writes the same UDP datagram of 64 B repeatedly: pps */
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

enum { SYN = 2, ACK = 16, MSS = 1460, SEGMENT = 44 * MSS, HEAD = 10 + 14, TCP = HEAD + 20, UDP = 17 };
static const unsigned char mac[6] = {2, 0, 0, 0, 0, 9};
static unsigned char f[HEAD + 40 + SEGMENT], in[1 << 17];
static int tap, scale, copies;
static uint32_t peer_sequence;

/* The C library's wrappers cost up to 0.4 us (docs/method/defaults.md#system-calls-without-a-wrapper); errors are reported as by the library. */
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

/* Sends a segment from the buffer f; the kernel checksums it, and segments it if it is long. */
static void segment(int flags, uint32_t sequence, uint32_t acknowledged, int head, int bytes) {
    struct virtio_net_hdr *vnet = (void *)f;
    *vnet = (struct virtio_net_hdr){.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 34, .csum_offset = 16};
    if (bytes > MSS) vnet->gso_type = VIRTIO_NET_HDR_GSO_TCPV4, vnet->gso_size = MSS, vnet->hdr_len = 34 + head;
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

static int connected(const char *to, const char *control) {
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, to, &far.sin_addr);
    int sock = socket(AF_INET, SOCK_STREAM, 0);
    if (control && setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, control, strlen(control))) perror(control), exit(1);
    if (connect(sock, (void *)&far, sizeof far)) perror("connect"), exit(1);
    return sock;
}

static void source(const char *to, const char *control) {
    static char buffer[128 << 10];
    for (int sock = connected(to, control);;)
        if (write(sock, buffer, sizeof buffer) <= 0) perror("write"), exit(1);
}

static void sink(const char *to, double time) {
    int sock = connected(to, 0);
    static char buffer[1 << 20];
    double begin = now() + 0.2, then = 0, count = 0, from = 0;
    while ((then = now()) < begin + time) {
        ssize_t got = read(sock, buffer, sizeof buffer);
        if (got <= 0) perror("read"), exit(1);
        if (then < begin) continue;
        if (!from) from = then; else count += got;
    }
    printf("bps=%.0f\n", count * 8 / (then - from)), exit(0);
}

static void pin(const char *cpu) {
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

/* Returns a frame to its sender. The checksums stay valid: the summed words only change places. */
static void send_back(ssize_t bytes) {
    memcpy(in + 10, in + 16, 6), memcpy(in + 16, mac, 6);
    if (write(tap, in, bytes) < 0) perror("write"), exit(1);
}

/* Reads the next frame, and answers ARP requests; returns -1 if there is none. */
static ssize_t next_frame(void) {
    ssize_t bytes = read(tap, in, sizeof in);
    if (bytes < 0 && errno != EAGAIN) perror("read"), exit(1);
    if (bytes < 52 || in[22] != 8 || in[23] != 6 || in[31] != 1) return bytes;
    in[31] = 2;
    swap(in + 32, in + 42, 10);
    memcpy(in + 32, mac, 6);
    send_back(bytes);
    return -1;
}

static void echo(void) {
    puts("READY");
    for (fflush(stdout);;) {
        ssize_t bytes = next_frame();
        if (bytes < 52 || in[22] != 8 || in[23] || in[33] != UDP) continue;
        swap(in + 36, in + 40, 4), swap(in + 44, in + 46, 2);
        send_back(bytes);
    }
}

/* The destination address is unused, as in a generator's frames, so that the kernel does the least work. */
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

/* Returns a received TCP segment; answers a SYN, with a window scale of 32 bytes. */
static unsigned char *next_segment(ssize_t got) {
    unsigned char *ip = in + HEAD, *tcp = in + TCP;
    if (got < 64 || in[22] != 8 || in[23] || ip[9] != 6) return 0;
    if (!(tcp[13] & SYN)) return tcp;
    for (int at = 20; at < tcp[12] >> 2; at += tcp[at] < 2 ? 1 : tcp[at + 1])
        if (tcp[at] == 3) scale = tcp[at + 2];
    memcpy(f + 10, in + 16, 6), memcpy(f + 16, mac, 6);
    f[22] = 8, f[HEAD] = 0x45, f[HEAD + 6] = 0x40, f[HEAD + 8] = 64, f[HEAD + 9] = 6;
    memcpy(f + HEAD + 12, ip + 16, 4), memcpy(f + HEAD + 16, ip + 12, 4);
    memcpy(f + TCP, tcp + 2, 2), memcpy(f + TCP + 2, tcp, 2);
    memcpy(f + TCP + 20, "\2\4\5\264\3\3\5\0", 8);
    peer_sequence = get(tcp + 4) + 1;
    segment(SYN | ACK, 0, peer_sequence, 28, 0);
    return 0;
}

static void copy(uint32_t next) {
    /* Not all zeros: pages never written would all map to the zero page. */
    static unsigned char program[SEGMENT] = {0xa5}, buffer[16 * SEGMENT];
    unsigned char *ring_slot = buffer + next / SEGMENT % 16 * SEGMENT;
    if (copies) memcpy(ring_slot, program, SEGMENT), memcpy(f + TCP + 20, ring_slot, SEGMENT);
}

static void stream(void) {
    uint32_t next = 1, acknowledged = 1, edge = 0;
    double progress_at = now();
    for (int established = 0;;) {
        ssize_t got = next_frame();
        unsigned char *tcp = next_segment(got);
        if (tcp) {
            uint32_t number = get(tcp + 8);
            if ((int32_t)(number - acknowledged) > 0) acknowledged = number, progress_at = now();
            edge = number + ((tcp[14] << 8 | tcp[15]) << scale), established = 1;
        }
        if (established && (int32_t)(edge - next) >= SEGMENT) copy(next), segment(ACK, next, peer_sequence, 20, SEGMENT), next += SEGMENT;
        else if (got >= 0) continue;
        else if (waitpid(-1, 0, WNOHANG) > 0) return;
        else if (established && now() > progress_at + 0.05) next = acknowledged, progress_at = now();
    }
}

static void take(double time) {
    double begin = now() + 0.2, then = 0, count = 0, from = 0;
    for (int unacknowledged = 0; (then = now()) < begin + time;) {
        ssize_t got = next_frame();
        unsigned char *tcp = next_segment(got);
        int bytes = tcp ? (in[HEAD + 2] << 8 | in[HEAD + 3]) - 20 - (tcp[12] >> 4) * 4 : 0;
        if (bytes > 0 && get(tcp + 4) == peer_sequence) {
            peer_sequence += bytes;
            if (from) count += bytes;
            else if (then >= begin) from = then;
        }
        unacknowledged += bytes > 0;
        if (unacknowledged == 2 || (unacknowledged && got < 0)) segment(ACK, 1, peer_sequence, 20, 0), unacknowledged = 0;
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
        prctl(PR_SET_PDEATHSIG, SIGKILL), pin(argv[6]);
        streams ? sink(argv[4], atoi(argv[7]) / 1e3) : source(argv[4], argv[8]);
    }
    pin(argv[streams || takes ? 5 : 4]);
    streams ? stream() : takes ? take(atoi(argv[7]) / 1e3) : sends ? send_on(atoi(argv[5]) / 1e3) : echo();
}
