// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one copy of a model's packed weights for all processes of one user on one host.
 *
 * Design: the first process that needs the weights packs them into a memfd, seals it against every change, and maps it
 *         read-only. Later ones open the same memfd through /proc/PID/fd of a process that has it, map it, and pack
 *         nothing. All of them reach the same offsets, because they ask for the same matrices in the same order.
 *
 *         A memfd and not a file: the kernel frees it with its last user, also after SIGKILL of all of them; it does
 *         not count against the size of /dev/shm (64 MB in a container); and a sealed one can be neither changed nor
 *         cut, so no other process can crash this one. A file in a cache on disk would also save packing after a
 *         restart, but needs as much disk as the models, a bound and a cleaner.
 *         Its pages are joined to huge ones before they are filled (MADV_COLLAPSE, Linux 6.1), which works although
 *         huge pages for shared memory are usually off. Decoding from small pages takes some 6% longer, so a process
 *         that would have huge pages of its own does not share where the kernel cannot do that.
 *
 *         A small file names the users (shared_users.h). Its lock is held while a process packs; the kernel releases
 *         it if that process dies, and the next one packs.
 * Limits: processes must see each other in /proc: the same user and the same PID namespace. A control group is charged
 *         for the pages that it touched first, so the process that packed is charged for all of them. Each part
 *         of the memory is on the NUMA node of the thread that made it: the team's, or the packer's.
 * Threads: one thread opens, takes and finishes, in no task of the team. Afterwards the weights are immutable.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Raise it with every change to the bytes that ops->pack() of any tier writes for the same matrix.
#define SL_PACKED_LAYOUT 2

#define SL_SHARED_STILL_MS 30000 // a process that packs has stopped if it makes no progress for this long

struct sl_matrix;
struct sl_shared_weights;
struct sl_team;

struct sl_shared_weights_config {
    const char *folder;       // for the list of users; NULL: a folder of this user in /dev/shm
    uint64_t key;             // of everything that decides the bytes, but for SL_PACKED_LAYOUT and SL_VERSION
    size_t room_bytes;        // address space for the weights: more than they can take
    uint32_t max_matrices;    // that are packed
    int64_t still_ms;         // 0: SL_SHARED_STILL_MS
    bool small_pages;         // share also where the kernel joins no pages of shared memory
    struct sl_team *team;     // joins pages until the weights are finished; NULL: the calling thread does
    _Atomic size_t *done_out; // gets the progress of another process while it packs; may be NULL
    _Atomic bool *stops;      // true ends the wait with SL_ERR_CANCELLED; may be NULL
};

/*
 * Opens the weights. Waits while another process packs them, as long as that one makes progress. *shared_out is then
 * ready (sl_shared_weights_are_ready()), or it is empty and the caller packs and finishes it; others wait meanwhile.
 * SL_ERR_DEADLINE: the other process makes no progress. SL_ERR_UNSUPPORTED, SL_ERR_EXHAUSTED, SL_ERR_IO, SL_ERR_DENIED:
 * nothing can be shared here. The caller can use memory of its own after every failure.
 */
enum sl_status sl_shared_weights_open(const struct sl_shared_weights_config *config,
                                      struct sl_shared_weights **shared_out, struct sl_error *err);

// Returns true if another process has packed these weights: they must not be written. False for NULL.
bool sl_shared_weights_are_ready(const struct sl_shared_weights *shared);

// Returns true if the next packed matrix is W, whose rows are then not needed. False for NULL, and when not ready.
bool sl_shared_weights_hold(const struct sl_shared_weights *shared, const struct sl_matrix *w);

/*
 * Returns `bytes` for the packed form of W, aligned to 64, and zero unless they are ready. Returns NULL where there is
 * no memory; if they are ready, NULL means that they were made for other matrices: SL_ERR_PEER_STALE for the caller.
 */
void *sl_shared_weights_take(struct sl_shared_weights *shared, const struct sl_matrix *w, size_t bytes);

// Tells processes that wait how much of the model's file is packed. Accepts NULL.
void sl_shared_weights_progress(struct sl_shared_weights *shared, size_t done_bytes);
// Tells them that a part of a matrix is done, which they see as one byte. Any thread. Accepts NULL.
void sl_shared_weights_progress_within(struct sl_shared_weights *shared);

/*
 * Ends packing: seals the weights for other processes. On failure this process may go on with them, and others cannot
 * use them: SL_ERR_EXHAUSTED, SL_ERR_IO. SL_ERR_PEER_STALE: they were ready, and are not for the matrices that were
 * taken. SL_ERR_INTERNAL: they are lost; close them.
 */
enum sl_status sl_shared_weights_finish(struct sl_shared_weights *shared, struct sl_error *err);

// Returns the bytes of the weights, and how many processes have them now, this one included.
size_t sl_shared_weights_bytes(const struct sl_shared_weights *shared);
int sl_shared_weights_users(const struct sl_shared_weights *shared);

// Releases the weights, finished or not. Nothing may use them any more. Accepts NULL, leaves NULL.
void sl_shared_weights_close(struct sl_shared_weights **shared);
