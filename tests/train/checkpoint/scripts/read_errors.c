/* Fails reads below a folder with an errno, as a network file system does: preloaded (LD_PRELOAD) into the processes
 * under test. $READ_ERRORS names a control file: "ERRNO FOLDER\n" fails every open, read and listing below FOLDER for as
 * long as the file is there; "ERRNO FOLDER once\n" fails one, and removes the file. Writes are let through. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int plan(char *folder, int *once) {
    const char *control = getenv("READ_ERRORS");
    char text[PATH_MAX + 64], mode[16] = "";
    int number = 0;
    if (!control) return 0;
    long file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long length = syscall(SYS_read, (int)file, text, sizeof text - 1);
    syscall(SYS_close, (int)file);
    if (length <= 0) return 0;
    text[length] = 0;
    if (sscanf(text, "%d %4095s %15s", &number, folder, mode) < 2) return 0;
    *once = !strcmp(mode, "once");
    return number;
}

/* The errno with which a read of this path fails now, or 0. Saves and restores errno. */
static int failing(const char *path) {
    char folder[PATH_MAX];
    int once = 0, before = errno, number = plan(folder, &once);
    errno = before;
    size_t length = number ? strlen(folder) : 0;
    if (!number || strncmp(path, folder, length) || (path[length] && path[length] != '/')) return 0;
    if (once && unlink(getenv("READ_ERRORS"))) number = 0; /* another process was the one */
    errno = before;
    return number;
}

static int failing_fd(int fd) {
    char link[64], path[PATH_MAX];
    const char *control = getenv("READ_ERRORS");
    int before = errno;
    ssize_t length = -1;
    if (control && !syscall(SYS_faccessat, AT_FDCWD, control, F_OK)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        length = readlink(link, path, sizeof path - 1);
    }
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return failing(path);
}

#define FAIL(NUMBER, RESULT) do { int number_ = (NUMBER); if (number_) { errno = number_; return RESULT; } } while (0)
#define READS(FLAGS) (((FLAGS) & O_ACCMODE) == O_RDONLY)
#define REAL(NAME, TYPE) static TYPE real; if (!real) real = (TYPE)dlsym(RTLD_NEXT, NAME)

typedef int (*open_t)(const char *, int, ...);
typedef int (*openat_t)(int, const char *, int, ...);
#define OPEN(NAME)                                                                \
    int NAME(const char *path, int flags, ...) {                                  \
        REAL(#NAME, open_t);                                                      \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, int); va_end(rest); \
        if (READS(flags)) FAIL(failing(path), -1);                                \
        return real(path, flags, mode);                                           \
    }
#define OPENAT(NAME)                                                              \
    int NAME(int at, const char *path, int flags, ...) {                          \
        REAL(#NAME, openat_t);                                                    \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, int); va_end(rest); \
        if (READS(flags)) FAIL(failing(path), -1);                                \
        return real(at, path, flags, mode);                                       \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

typedef ssize_t (*read_t)(int, void *, size_t);
ssize_t read(int fd, void *to, size_t size) {
    REAL("read", read_t);
    FAIL(failing_fd(fd), -1);
    return real(fd, to, size);
}

typedef DIR *(*opendir_t)(const char *);
DIR *opendir(const char *path) {
    REAL("opendir", opendir_t);
    FAIL(failing(path), NULL);
    return real(path);
}
