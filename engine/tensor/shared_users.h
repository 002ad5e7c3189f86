// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the list of processes that have one memfd of weights open, by which further processes find it, and the lock
 *          of the one that packs them. See shared_weights.h.
 *
 * Design: a file for each key, in a folder that only this user may enter. Each line is a process and its descriptor. The
 *         lines are hints: a line counts only while that descriptor is a memfd with the key's name. So a list that is
 *         old, cut or forged costs sharing, never a wrong byte. The file goes with its last user; those of killed
 *         processes go when the next process opens weights.
 * Invariants: lists are written with flock() held. A file that was replaced since it was opened is not a lock. A folder
 *             is checked each time a list is locked: it goes with its last list, and another user could make the next.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct sl_shared_list {
    char folder[PATH_MAX - 32];
    char path[PATH_MAX];
    uint64_t key;
    int file; // locked; -1: not locked
};

// Makes the folder (NULL: the usual one), and removes lists without users from it. SL_ERR_DENIED: others may enter it.
// SL_ERR_IO.
enum sl_status sl_shared_list_open(struct sl_shared_list *list, const char *folder, uint64_t key, struct sl_error *err);

// Locks the list; makes its folder again if that is gone. SL_AGAIN: another process has it, or removes one of them.
// SL_ERR_DENIED: the folder is now one that others may enter. SL_ERR_IO.
enum sl_status sl_shared_list_lock(struct sl_shared_list *list, struct sl_error *err);
void sl_shared_list_unlock(struct sl_shared_list *list);

// Names this process's descriptor; -1: none. Forgets users that are gone. List locked. SL_ERR_IO: no room.
enum sl_status sl_shared_list_write(struct sl_shared_list *list, int own, struct sl_error *err);

// Removes the list if no user remains. Call it after this process's descriptor is closed, locked or not. A list that
// another process keeps locked stays for the next one that opens weights.
void sl_shared_list_leave(struct sl_shared_list *list);

/*
 * Calls fn for each user's memfd, opened for reading, until fn takes it by returning true. Returns fn's choice, which
 * the caller closes, or -1. Works without the lock, too.
 */
int sl_shared_list_find(const struct sl_shared_list *list, bool (*fn)(void *arg, int fd), void *arg);

// Returns how many users the list has.
int sl_shared_list_count(const struct sl_shared_list *list);

// Writes the name of a key's memfd.
#define SL_SHARED_NAME_BYTES 48
void sl_shared_name(uint64_t key, char name_out[SL_SHARED_NAME_BYTES]);
