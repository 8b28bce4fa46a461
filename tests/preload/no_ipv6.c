/* Intercepts libc's socket() and makes IPv6 unavailable, as a kernel booted with ipv6.disable=1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
    static int (*next)(int, int, int);
    if (domain == AF_INET6) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    if (!next) next = (int (*)(int, int, int)) dlsym(RTLD_NEXT, "socket");
    return next(domain, type, protocol);
}
