// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/shared_users.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"

#define MAX_USERS     64
#define MAX_LIST      (MAX_USERS * 24) // bytes of a list
#define LEAVE_TRIES   50
#define LEAVE_WAIT_MS 4
#define FOLDER_TRIES  200 // of some microseconds

struct user {
    int pid, fd;
};

void sl_shared_name(uint64_t key, char name_out[SL_SHARED_NAME_BYTES]) {
    snprintf(name_out, SL_SHARED_NAME_BYTES, "sluice-weights-%016llx", (unsigned long long)key);
}

// --- users -----------------------------------------------------------------------------------------------------------

// Returns true if the user's descriptor is the key's memfd. Reading its name opens nothing, whatever it is by now.
static bool is_user(const struct user *user, uint64_t key) {
    char path[64], name[SL_SHARED_NAME_BYTES], expected[SL_SHARED_NAME_BYTES + 24], found[SL_SHARED_NAME_BYTES + 24];
    sl_shared_name(key, name);
    int n = snprintf(expected, sizeof expected, "/memfd:%s (deleted)", name);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", user->pid, user->fd);
    return readlink(path, found, sizeof found) == n && memcmp(found, expected, (size_t)n) == 0;
}

// Reads the list's users that still are. Returns how many.
static int read_users(int file, uint64_t key, struct user users_out[MAX_USERS]) {
    char text[MAX_LIST + 1];
    ssize_t bytes = pread(file, text, MAX_LIST, 0);
    int n = 0, used;
    text[bytes > 0 ? bytes : 0] = '\0';
    for (const char *at = text; n < MAX_USERS; at += used) {
        if (sscanf(at, "%9d %9d%n", &users_out[n].pid, &users_out[n].fd, &used) != 2) {
            break;
        }
        n += is_user(&users_out[n], key);
    }
    return n;
}

// Reads the users without a lock.
static int look(const struct sl_shared_list *list, struct user users_out[MAX_USERS]) {
    int file = open(list->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int n = file >= 0 ? read_users(file, list->key, users_out) : 0;
    sl_close(file);
    return n;
}

int sl_shared_list_find(const struct sl_shared_list *list, bool (*fn)(void *arg, int fd), void *arg) {
    struct user users[MAX_USERS];
    int n = look(list, users);
    for (int i = 0; i < n; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", users[i].pid, users[i].fd);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && fn(arg, fd)) {
            return fd;
        }
        sl_close(fd);
    }
    return -1;
}

int sl_shared_list_count(const struct sl_shared_list *list) {
    struct user users[MAX_USERS];
    return look(list, users);
}

// --- the folder and the lock -----------------------------------------------------------------------------------------

/*
 * Opens the folder, and makes it before if `create`. The caller then names its files from the descriptor: the folder may
 * be removed at any time, and another user may make one of that name. SL_AGAIN: another process removes it right now.
 */
static enum sl_status open_folder(const char *folder, bool create, int *dir_out, struct sl_error *err) {
    *dir_out = -1;
    SL_FAIL_IF(create && mkdir(folder, 0700) != 0 && errno != EEXIST, err, SL_ERR_IO, "%s: %s", folder,
               strerror(errno));
    struct stat st;
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 && errno == ENOENT) {
        return SL_AGAIN;
    }
    bool others = dir < 0 && (errno == EACCES || errno == ENOTDIR || errno == ELOOP);
    SL_FAIL_IF(dir < 0 && !others, err, SL_ERR_IO, "%s: %s", folder, strerror(errno));
    if (others || fstat(dir, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        sl_close(dir);
        return sl_fail(err, SL_ERR_DENIED, "%s: not a folder that only this user may enter", folder);
    }
    *dir_out = dir;
    return SL_OK;
}

// Locks a file of the folder, which is made if `create`. SL_AGAIN: another process has it, or removes it or the folder
// right now. SL_ERR_NOT_FOUND: there is none.
static enum sl_status lock_file(int dir, const char *name, bool create, int *file_out, struct sl_error *err) {
    *file_out = -1;
    int file = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0), 0600);
    if (file < 0 && errno == ENOENT) {
        return create ? SL_AGAIN : SL_ERR_NOT_FOUND;
    }
    SL_FAIL_IF(file < 0, err, errno == EACCES ? SL_ERR_DENIED : SL_ERR_IO, "%s: %s", name, strerror(errno));
    struct stat opened, named;
    bool ours = fstat(file, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_uid == geteuid();
    bool locked = ours && flock(file, LOCK_EX | LOCK_NB) == 0;
    if (locked && fstatat(dir, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == opened.st_ino &&
        named.st_dev == opened.st_dev) {
        *file_out = file;
        return SL_OK;
    }
    close(file);
    return ours ? SL_AGAIN : sl_fail(err, SL_ERR_DENIED, "%s: not a file of this user", name);
}

// Removes lists whose users are gone, as after SIGKILL. Closes the folder.
static void sweep(int folder) {
    DIR *dir = fdopendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char *end;
        struct user users[MAX_USERS];
        uint64_t key = strtoull(entry->d_name, &end, 16);
        int file = -1;
        if (*end == '\0' && lock_file(folder, entry->d_name, false, &file, NULL) == SL_OK) {
            if (read_users(file, key, users) == 0) {
                unlinkat(folder, entry->d_name, 0);
            }
            close(file);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    } else {
        close(folder);
    }
}

// Writes the usual folder. Processes of another PID namespace may share /dev/shm, and cannot use these numbers.
static void usual_folder(char *out, size_t bytes) {
    char link[64] = "";
    unsigned long long space = 0;
    if (readlink("/proc/self/ns/pid", link, sizeof link - 1) > 0) {
        (void)sscanf(link, "pid:[%llu]", &space);
    }
    snprintf(out, bytes, "/dev/shm/sluice-%u-%llx", (unsigned)geteuid(), space);
}

enum sl_status sl_shared_list_open(struct sl_shared_list *list, const char *folder, uint64_t key,
                                   struct sl_error *err) {
    *list = (struct sl_shared_list){.key = key, .file = -1};
    usual_folder(list->folder, sizeof list->folder);
    SL_FAIL_IF(folder != NULL && snprintf(list->folder, sizeof list->folder, "%s", folder) >= (int)sizeof list->folder,
               err, SL_ERR_INVALID, "%.200s...: the path is too long", folder);
    int dir = -1;
    enum sl_status status = SL_AGAIN;
    for (int i = 0; i < FOLDER_TRIES && status == SL_AGAIN; i++) {
        status = open_folder(list->folder, true, &dir, err);
    }
    if (status != SL_OK) {
        return status != SL_AGAIN ? status
                                  : sl_fail(err, SL_ERR_IO, "%s: other processes remove it again", list->folder);
    }
    snprintf(list->path, sizeof list->path, "%s/%016llx", list->folder, (unsigned long long)key);
    sweep(dir);
    return SL_OK;
}

// Returns the list's name in the folder.
static const char *name_of(const struct sl_shared_list *list) {
    return strrchr(list->path, '/') + 1;
}

enum sl_status sl_shared_list_lock(struct sl_shared_list *list, struct sl_error *err) {
    int dir;
    struct sl_error why;
    SL_TRY(open_folder(list->folder, true, &dir, err)); // the last user of another model removes it
    enum sl_status status = lock_file(dir, name_of(list), true, &list->file, &why);
    close(dir);
    return status == SL_OK || status == SL_AGAIN ? status : sl_fail(err, status, "%s/%s", list->folder, why.text);
}

void sl_shared_list_unlock(struct sl_shared_list *list) {
    sl_close(list->file);
    list->file = -1;
}

enum sl_status sl_shared_list_write(struct sl_shared_list *list, int own, struct sl_error *err) {
    struct user users[MAX_USERS];
    char text[MAX_LIST];
    int n = read_users(list->file, list->key, users), pid = getpid();
    size_t bytes = own >= 0 ? (size_t)snprintf(text, sizeof text, "%d %d\n", pid, own) : 0;
    for (int i = 0; i < n && bytes + 24 < sizeof text; i++) {
        if (users[i].pid != pid || users[i].fd != own) {
            bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "%d %d\n", users[i].pid, users[i].fd);
        }
    }
    // Readers may come without the lock. They check every line that they find.
    SL_FAIL_IF(pwrite(list->file, text, bytes, 0) != (ssize_t)bytes || ftruncate(list->file, (off_t)bytes) != 0, err,
               SL_ERR_IO, "%s: %s", list->path, strerror(errno));
    return SL_OK;
}

void sl_shared_list_leave(struct sl_shared_list *list) {
    struct user users[MAX_USERS];
    if (list->path[0] == '\0') { // the folder is not ours
        return;
    }
    int dir;
    if (open_folder(list->folder, false, &dir, NULL) == SL_OK) {
        enum sl_status status = list->file >= 0 ? SL_OK : SL_AGAIN;
        for (int i = 0; i < LEAVE_TRIES && status == SL_AGAIN; i++) {
            status = lock_file(dir, name_of(list), false, &list->file, NULL);
            if (status == SL_AGAIN) {
                sl_sleep_ms(LEAVE_WAIT_MS);
            }
        }
        if (status == SL_OK && read_users(list->file, list->key, users) == 0) {
            unlinkat(dir, name_of(list), 0);
        } else if (status == SL_OK) {
            (void)sl_shared_list_write(list, -1, NULL); // lines of users that are gone do not count
        }
        close(dir);
    }
    sl_shared_list_unlock(list);
    rmdir(list->folder); // fails while it has lists
}
