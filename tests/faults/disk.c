/* Calls on files below some folders fail: the n-th of them, or all from the n-th on. Preloaded (LD_PRELOAD), and told what
   to do by `fault_arm`; file descriptors belong to the file that they were opened for. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static atomic_long calls, wanted = -1, sticky, writes_only;
static atomic_int problem;
static char met[64];

void fault_arm(const char *folder, long number, int error, int from_then_on, int writing) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    calls = 0;
    problem = error;
    sticky = from_then_on;
    writes_only = writing;
    wanted = number;
}

long fault_disarm(void) {
    wanted = -1;
    return calls;
}

const char *fault_met(void) { return met; }

static int fails(const char *name, int writes) {
    long now, at = wanted;
    if (at < 0 || (writes_only && !writes)) return 0;
    now = atomic_fetch_add(&calls, 1) + 1;
    if (at == 0 || (sticky ? now < at : now != at)) return 0;
    if (now == at) snprintf(met, sizeof met, "%s", name);
    errno = problem;
    return 1;
}

static int below(const char *path) { return wanted >= 0 && path && strncmp(path, root, root_length) == 0; }

static int of(int descriptor) {
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (wanted < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlinkat(AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int at(int folder, const char *path) { return path && path[0] == '/' ? below(path) : folder != AT_FDCWD && of(folder); }

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return below(path) && fails(#name, flags & (O_CREAT | O_WRONLY | O_RDWR)) ? -1 : real(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return at(folder, path) && fails(#name, flags & (O_CREAT | O_WRONLY | O_RDWR)) ? -1 : real(folder, path, flags, mode); \
    }
#define CALL(type, name, parameters, types, where, writes, failed, ...) \
    type name parameters { \
        REAL(type, name, types); \
        return (where) && fails(#name, writes) ? failed : real(__VA_ARGS__); \
    }
#define T(...) __VA_ARGS__

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
CALL(ssize_t, read, (int f, void *b, size_t n), T(int, void *, size_t), of(f), 0, -1, f, b, n)
CALL(ssize_t, write, (int f, const void *b, size_t n), T(int, const void *, size_t), of(f), 1, -1, f, b, n)
CALL(int, ftruncate, (int f, off_t n), T(int, off_t), of(f), 1, -1, f, n)
CALL(int, ftruncate64, (int f, off64_t n), T(int, off64_t), of(f), 1, -1, f, n)
CALL(off_t, lseek, (int f, off_t n, int w), T(int, off_t, int), of(f), 0, -1, f, n, w)
CALL(off64_t, lseek64, (int f, off64_t n, int w), T(int, off64_t, int), of(f), 0, -1, f, n, w)
CALL(int, fstat, (int f, struct stat *s), T(int, struct stat *), of(f), 0, -1, f, s)
CALL(int, fstat64, (int f, struct stat64 *s), T(int, struct stat64 *), of(f), 0, -1, f, s)
CALL(int, stat, (const char *p, struct stat *s), T(const char *, struct stat *), below(p), 0, -1, p, s)
CALL(int, stat64, (const char *p, struct stat64 *s), T(const char *, struct stat64 *), below(p), 0, -1, p, s)
CALL(int, lstat, (const char *p, struct stat *s), T(const char *, struct stat *), below(p), 0, -1, p, s)
CALL(int, lstat64, (const char *p, struct stat64 *s), T(const char *, struct stat64 *), below(p), 0, -1, p, s)
CALL(int, fstatat, (int d, const char *p, struct stat *s, int g), T(int, const char *, struct stat *, int), at(d, p), 0, -1, d, p, s, g)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int g), T(int, const char *, struct stat64 *, int), at(d, p), 0, -1, d, p, s, g)
CALL(int, statvfs, (const char *p, struct statvfs *s), T(const char *, struct statvfs *), below(p), 0, -1, p, s)
CALL(int, statvfs64, (const char *p, struct statvfs64 *s), T(const char *, struct statvfs64 *), below(p), 0, -1, p, s)
CALL(ssize_t, readlink, (const char *p, char *b, size_t n), T(const char *, char *, size_t), below(p), 0, -1, p, b, n)
CALL(ssize_t, listxattr, (const char *p, char *b, size_t n), T(const char *, char *, size_t), below(p), 0, -1, p, b, n)
CALL(int, flock, (int f, int o), T(int, int), of(f), 1, -1, f, o)
CALL(int, mkdir, (const char *p, mode_t m), T(const char *, mode_t), below(p), 1, -1, p, m)
CALL(int, rmdir, (const char *p), T(const char *), below(p), 1, -1, p)
CALL(int, unlink, (const char *p), T(const char *), below(p), 1, -1, p)
CALL(int, unlinkat, (int d, const char *p, int g), T(int, const char *, int), at(d, p), 1, -1, d, p, g)
CALL(int, chmod, (const char *p, mode_t m), T(const char *, mode_t), below(p), 1, -1, p, m)
CALL(int, fchmodat, (int d, const char *p, mode_t m, int g), T(int, const char *, mode_t, int), at(d, p), 1, -1, d, p, m, g)
CALL(int, rename, (const char *p, const char *q), T(const char *, const char *), below(q), 1, -1, p, q)
CALL(int, utimensat, (int d, const char *p, const struct timespec t[2], int g), T(int, const char *, const struct timespec *, int), at(d, p), 1, -1, d, p, t, g)
CALL(int, futimens, (int f, const struct timespec t[2]), T(int, const struct timespec *), of(f), 1, -1, f, t)
CALL(DIR *, opendir, (const char *p), T(const char *), below(p), 0, NULL, p)
CALL(DIR *, fdopendir, (int f), T(int), of(f), 0, NULL, f)

int close(int descriptor) { /* it closes, and tells that what was written has not arrived */
    REAL(int, close, int);
    int failed = of(descriptor) && fails("close", 1), error = errno, result = real(descriptor);
    if (!failed) return result;
    errno = error;
    return -1;
}
