/* Loaded before libc (LD_PRELOAD) by tests of crashes. It counts what a process does to files and sockets. At the n-th such
 * call it kills the process group, or lets the call fail. It can also write down every call that changes a file, so that a
 * test can rebuild what a disk may hold after a power cut.
 *
 * DIBS_SHIM names the file with the struct below, which processes of a test share. DIBS_SHIM_LOG names the file for what is
 * written down, DIBS_SHIM_UNDER the folder whose files matter for it. shim.py is the other side.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, NAMES = 4, NETWORK = 8 };

struct control {
    long armed;    /* 0: every call goes through, uncounted */
    long count;    /* counted calls since it was armed */
    long at;       /* strike before this call; 0: never */
    long error;    /* what the call fails with; 0: it is killed */
    long lasts;    /* so many calls fail */
    long kinds;    /* which calls count */
    long group;    /* the process group that is killed */
    long sync_us;  /* every sync takes this much longer */
    long whole;    /* 0: a write that fails has written half of its bytes */
};

static struct control off;
static struct control *shared = &off;
static int log_handle = -1;
static const char *under;
static pthread_mutex_t one_by_one = PTHREAD_MUTEX_INITIALIZER;

/* What is written down has the order in which it was done. */
static int enter(void) { return log_handle >= 0 && pthread_mutex_lock(&one_by_one) == 0; }
static void leave(int entered) {
    int before = errno;
    if (entered) pthread_mutex_unlock(&one_by_one);
    errno = before;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DIBS_SHIM");
    int handle = path ? (int)syscall(SYS_open, path, O_RDWR | O_CLOEXEC) : -1;
    if (handle < 0) return;
    void *found = mmap(NULL, sizeof off, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    if (found != MAP_FAILED) shared = found;
    syscall(SYS_close, handle);
    under = getenv("DIBS_SHIM_UNDER");
    if (getenv("DIBS_SHIM_LOG"))
        log_handle = (int)syscall(SYS_open, getenv("DIBS_SHIM_LOG"), O_WRONLY | O_APPEND | O_CLOEXEC);
}

/* Whether the call may go on. If not, errno says how it failed. */
static int passes(long kind) {
    if (!shared->armed || !(shared->kinds & kind)) return 1;
    long number = __sync_add_and_fetch(&shared->count, 1);
    if (!shared->at || number < shared->at) return 1;
    if (!shared->error) {
        if (shared->group) syscall(SYS_kill, -shared->group, SIGKILL);
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
    if (number >= shared->at + shared->lasts) return 1;
    errno = (int)shared->error;
    return 0;
}

static long kind_of(int handle) {
    struct stat found;
    int before = errno;
    int known = fstat(handle, &found) == 0;
    errno = before;
    return known && S_ISREG(found.st_mode) ? WRITES : NETWORK;
}

/* What is written down: a line with the call, its numbers and its paths, then the bytes of a write. */
static void note(const char *call, long first, long second, const char *path, const char *to, const void *data, size_t size) {
    char line[2 * 4096 + 100];
    if (log_handle < 0 || !shared->armed || !under || strncmp(path, under, strlen(under)) != 0) return;
    int length = snprintf(line, sizeof line, "%s %ld %ld\t%s\t%s\n", call, first, second, path, to);
    struct iovec parts[2] = {{line, (size_t)length}, {(void *)data, size}};
    syscall(SYS_writev, log_handle, parts, 2);
}

static void note_handle(const char *call, int handle, long first, long second, const void *data, size_t size) {
    char link[64], path[4096];
    if (log_handle < 0 || !shared->armed) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    long length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    note(call, first, second, path, "", data, size);
}

static const char *whole_path(const char *path, char *space) {
    if (path[0] == '/' || !getcwd(space, 4096)) return path;
    strncat(space, "/", 4096 - strlen(space) - 1);
    strncat(space, path, 4096 - strlen(space) - 1);
    return space;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static ssize_t written(int handle, const void *data, size_t size, off_t at) {
    long result = at < 0 ? syscall(SYS_write, handle, data, size) : syscall(SYS_pwrite64, handle, data, size, at);
    if (result < 0) return -1;
    return result;
}

static ssize_t do_write(int handle, const void *data, size_t size, off_t at) {
    long kind = kind_of(handle);
    off_t place = at < 0 && kind == WRITES ? lseek(handle, 0, SEEK_CUR) : at;
    if (!passes(kind)) {
        int error = errno;
        if (kind == WRITES && !shared->whole && size > 1) written(handle, data, size / 2, at);
        errno = error;
        return -1;
    }
    int entered = enter();
    ssize_t result = written(handle, data, size, at);
    if (result > 0 && kind == WRITES) note_handle("write", handle, place, result, data, (size_t)result);
    leave(entered);
    return result;
}

ssize_t write(int handle, const void *data, size_t size) { return do_write(handle, data, size, -1); }
ssize_t pwrite(int handle, const void *data, size_t size, off_t at) { return do_write(handle, data, size, at); }
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) { return do_write(handle, data, size, at); }

static int do_sync(int handle, int number) {
    if (shared->armed && shared->sync_us) usleep((unsigned)shared->sync_us);
    if (!passes(SYNCS)) return -1;
    int entered = enter();
    int result = (int)syscall(number, handle);
    if (result == 0) note_handle("sync", handle, 0, 0, "", 0);
    leave(entered);
    return result;
}

int fsync(int handle) { return do_sync(handle, SYS_fsync); }
int fdatasync(int handle) { return do_sync(handle, SYS_fdatasync); }

static int do_truncate(int handle, off_t size) {
    if (!passes(WRITES)) return -1;
    int result = (int)syscall(SYS_ftruncate, handle, size);
    if (result == 0) note_handle("truncate", handle, size, 0, "", 0);
    return result;
}

int ftruncate(int handle, off_t size) { return do_truncate(handle, size); }
int ftruncate64(int handle, off64_t size) { return do_truncate(handle, size); }

int fallocate(int handle, int mode, off_t at, off_t size) { return passes(WRITES) ? (int)syscall(SYS_fallocate, handle, mode, at, size) : -1; }
int posix_fallocate(int handle, off_t at, off_t size) {
    if (!passes(WRITES)) return errno;
    return REAL(posix_fallocate)(handle, at, size);
}

static int do_open(int folder, const char *path, int flags, mode_t mode) {
    char space[4096];
    int makes = 0;
    if (flags & O_CREAT) {
        struct stat found;
        makes = syscall(SYS_newfstatat, folder, path, &found, 0) != 0;
        if (makes && !passes(NAMES)) return -1;
    }
    int handle = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (handle >= 0 && makes) note("make", 0, 0, whole_path(path, space), "", "", 0);
    if (handle >= 0 && (flags & O_TRUNC)) note_handle("truncate", handle, 0, 0, "", 0);
    return handle;
}

#define MODE(flags) mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return do_open(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return do_open(folder, path, flags | O_LARGEFILE, mode); }

int mknod(const char *path, mode_t mode, dev_t device) {
    char space[4096];
    if (!passes(NAMES)) return -1;
    int result = (int)syscall(SYS_mknodat, AT_FDCWD, path, mode, device);
    if (result == 0) note("make", 0, 0, whole_path(path, space), "", "", 0);
    return result;
}

int mkdir(const char *path, mode_t mode) { return passes(NAMES) ? (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode) : -1; }

static int do_unlink(int folder, const char *path, int flags) {
    char space[4096];
    if (!passes(NAMES)) return -1;
    int result = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (result == 0) note("unlink", 0, 0, whole_path(path, space), "", "", 0);
    return result;
}

int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return do_unlink(folder, path, flags); }

int rename(const char *from, const char *to) {
    char first[4096], second[4096];
    if (!passes(NAMES)) return -1;
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0) note("rename", 0, 0, whole_path(from, first), whole_path(to, second), "", 0);
    return result;
}

int link(const char *from, const char *to) {
    char first[4096], second[4096];
    if (!passes(NAMES)) return -1;
    int result = (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0) note("link", 0, 0, whole_path(from, first), whole_path(to, second), "", 0);
    return result;
}

ssize_t send(int handle, const void *data, size_t size, int flags) {
    return passes(NETWORK) ? syscall(SYS_sendto, handle, data, size, flags, NULL, 0) : -1;
}

ssize_t recv(int handle, void *data, size_t size, int flags) {
    return passes(NETWORK) ? syscall(SYS_recvfrom, handle, data, size, flags, NULL, NULL) : -1;
}
