/* Intercepts libc's socket calls and counts them, as preloaded stacks (Onload, VMA) intercept them.
   The counts are written at exit to the file named by COUNTS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

static unsigned long sends, receives;

#define COUNTED(counter, result, name, parameters, arguments)                      \
    result name parameters {                                                       \
        static result (*next) parameters;                                          \
        if (!next) next = (result (*) parameters) dlsym(RTLD_NEXT, #name);         \
        __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);                         \
        return next arguments;                                                     \
    }

COUNTED(sends, ssize_t, send, (int fd, const void *b, size_t n, int f), (fd, b, n, f))
COUNTED(sends, ssize_t, sendto,
        (int fd, const void *b, size_t n, int f, const struct sockaddr *a, socklen_t l),
        (fd, b, n, f, a, l))
COUNTED(sends, ssize_t, sendmsg, (int fd, const struct msghdr *m, int f), (fd, m, f))
COUNTED(sends, int, sendmmsg, (int fd, struct mmsghdr *m, unsigned int n, int f), (fd, m, n, f))
COUNTED(receives, ssize_t, recv, (int fd, void *b, size_t n, int f), (fd, b, n, f))
COUNTED(receives, ssize_t, recvfrom,
        (int fd, void *restrict b, size_t n, int f, struct sockaddr *restrict a,
         socklen_t *restrict l),
        (fd, b, n, f, a, l))
COUNTED(receives, ssize_t, recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f))
COUNTED(receives, int, recvmmsg,
        (int fd, struct mmsghdr *m, unsigned int n, int f, struct timespec *t), (fd, m, n, f, t))

__attribute__((destructor)) static void write_counts(void) {
    const char *path = getenv("COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%lu %lu\n", sends, receives);
    fclose(file);
}
