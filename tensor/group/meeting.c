// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see meeting.h.
 *
 * Invariants: Whoever sleeps has first said so (n_asleep), then read `changed`, and then looked once more. Whoever wakes has first changed what is waited for,
 *             then looks at n_asleep, and raises `changed` before waking. All are sequentially consistent: so one of the two sees the other. A rank that is killed asleep leaves n_asleep too
 *             large, which costs system calls in a group that ends anyway.
 *             `lost` is written once.
 */
#include "tensor/group/meeting.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/futex.h"
#include "tensor/group/group.h"

#define LINE 64
#define NAP  (100 * SL_NS_PER_MS) // who is killed between coming and waking others is seen by the next look

enum seat_state { EMPTY, TAKEN, LEFT };

struct words { // of a rank to all others
    enum sl_status status;
    char text[sizeof((struct sl_error *)0)->text];
};

struct seat {
    _Alignas(LINE) _Atomic uint32_t came; // the number of the last meeting
    _Atomic uint32_t state;
    _Atomic uint32_t touches; // memory of others
    struct sl_errand errands[2];
    _Alignas(LINE) struct words words[2];
};

enum lost_why { SILENT, GONE, GIVEN_UP, ASTRAY };

struct sl_hall {
    _Alignas(LINE) _Atomic uint32_t lost; // 0: nobody; see pack_lost()
    _Alignas(LINE) _Atomic uint32_t changed;
    _Atomic uint32_t n_asleep;
    struct seat seats[SL_MAX_RANKS];
};

static const char *const purposes[] = {
    [SL_PURPOSE_JOIN] = "group",
    [SL_PURPOSE_SUM] = "sum",
    [SL_PURPOSE_GATHER] = "gather",
    [SL_PURPOSE_MEETING] = "meeting",
};

size_t sl_meeting_hall_bytes(void) {
    return sizeof(struct sl_hall);
}

// --- who is lost -------------------------------------------------------------------------------------------------------

static uint32_t pack_lost(int rank, enum lost_why why, enum sl_purpose what) {
    return 1u | (uint32_t)rank << 8 | (uint32_t)why << 16 | (uint32_t)what << 24;
}

static void wake_all(struct sl_hall *hall) {
    atomic_fetch_add(&hall->changed, 1);
    sl_futex_wake(&hall->changed);
}

// The first reason stays.
static void lose(struct sl_hall *hall, int rank, enum lost_why why, enum sl_purpose what) {
    uint32_t nobody = 0;
    if (atomic_compare_exchange_strong(&hall->lost, &nobody, pack_lost(rank, why, what))) {
        wake_all(hall);
    }
}

enum sl_status sl_meeting_say_lost(const struct sl_meeting *m, struct sl_error *err) {
    uint32_t lost = atomic_load(&m->hall->lost);
    int rank = (int)(lost >> 8 & 0xff);
    enum lost_why why = (enum lost_why)(lost >> 16 & 0xff);
    const char *what = purposes[lost >> 24];
    double seconds = (double)m->deadline_ms / 1000;
    switch (why) {
    case SILENT:
        return rank == m->rank
                   ? sl_fail(err, SL_ERR_PEER_LOST,
                             "rank %d of %d, this one, had not come to a %s in time: the others have given it up", rank,
                             m->size, what)
                   : sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d has not come to a %s for %.1f s", rank, m->size,
                             what, seconds);
    case GONE:
        return sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d has left while others came to a %s", rank, m->size, what);
    case GIVEN_UP:
        return sl_fail(err, SL_ERR_PEER_LOST, "rank %d of %d has given up", rank, m->size);
    default:
        return sl_fail(err, SL_ERR_INTERNAL, "rank %d of %d came to a %s of another kind or size than rank 0", rank,
                       m->size, what);
    }
}

void sl_meeting_abandon(struct sl_meeting *m) {
    lose(m->hall, m->rank, GIVEN_UP, SL_PURPOSE_MEETING);
}

void sl_meeting_give_up(struct sl_meeting *m, int rank) {
    lose(m->hall, rank, SILENT, SL_PURPOSE_SUM);
}

int sl_meeting_lost(const struct sl_meeting *m) {
    uint32_t lost = atomic_load(&m->hall->lost);
    return lost != 0 ? (int)(lost >> 8 & 0xff) : -1;
}

// --- waiting -----------------------------------------------------------------------------------------------------------

struct wait {
    const struct sl_meeting *meeting;
    int next; // nobody below it is missing
};

static bool has_come(const struct wait *wait) {
    const struct sl_meeting *m = wait->meeting;
    return (int32_t)(atomic_load(&m->hall->seats[wait->next].came) - m->number) >= 0;
}

// All have come, or not all will. Who comes and leaves at once, or gives up, has come: it is looked for once more behind that.
static bool is_over(void *arg) {
    struct wait *wait = arg;
    struct sl_hall *hall = wait->meeting->hall;
    for (; wait->next < wait->meeting->size; wait->next++) {
        if (!has_come(wait)) {
            if (atomic_load(&hall->lost) == 0 && atomic_load(&hall->seats[wait->next].state) != LEFT) {
                return false;
            }
            if (!has_come(wait)) {
                return true;
            }
        }
    }
    return true;
}

static void sleep_until_over(struct wait *wait, int64_t deadline_ns) {
    struct sl_hall *hall = wait->meeting->hall;
    atomic_fetch_add(&hall->n_asleep, 1);
    for (;;) {
        uint32_t seen = atomic_load(&hall->changed);
        int64_t left = deadline_ns - sl_now_ns();
        if (is_over(wait) || left <= 0) {
            break;
        }
        sl_futex_sleep(&hall->changed, seen, left < NAP ? left : NAP);
    }
    atomic_fetch_sub(&hall->n_asleep, 1);
}

static enum sl_status wait_for_all(struct sl_meeting *m, enum sl_purpose what, struct sl_error *err) {
    struct wait wait = {m, 0};
    if (!is_over(&wait) && !sl_patience_look(&m->patience, is_over, &wait)) {
        sleep_until_over(&wait, sl_now_ns() + m->deadline_ms * SL_NS_PER_MS);
    }
    if (wait.next == m->size) {
        return SL_OK;
    }
    lose(m->hall, wait.next, atomic_load(&m->hall->seats[wait.next].state) == LEFT ? GONE : SILENT, what);
    return sl_meeting_say_lost(m, err); // perhaps what somebody else has found before
}

// --- coming ------------------------------------------------------------------------------------------------------------

static enum sl_status check_errands(struct sl_meeting *m, struct sl_error *err) {
    const struct sl_errand *first = &m->hall->seats[0].errands[m->number & 1];
    for (int r = 1; r < m->size; r++) {
        const struct sl_errand *other = &m->hall->seats[r].errands[m->number & 1];
        if (other->what != first->what || other->amount != first->amount) {
            lose(m->hall, r, ASTRAY, other->what);
            return sl_meeting_say_lost(m, err);
        }
    }
    return SL_OK;
}

enum sl_status sl_meeting_come(struct sl_meeting *m, const struct sl_errand *errand, struct sl_error *err) {
    struct sl_hall *hall = m->hall;
    struct seat *mine = &hall->seats[m->rank];
    if (atomic_load(&hall->lost) != 0) {
        return sl_meeting_say_lost(m, err);
    }
    m->number++;
    mine->errands[m->number & 1] = *errand;
    atomic_store(&mine->came, m->number);
    if (atomic_load(&hall->n_asleep) > 0) {
        struct wait all = {m, 0};
        if (is_over(&all)) { // whoever comes last wakes the others, once
            wake_all(hall);
        }
    }
    enum sl_status status = wait_for_all(m, errand->what, err);
    return status == SL_OK ? check_errands(m, err) : status;
}

void *sl_meeting_at(const struct sl_meeting *m, int rank) {
    return m->hall->seats[rank].errands[m->number & 1].at;
}

// Either this rank sees that the group has ended, or whoever settles sees that it touches.
bool sl_meeting_touch(struct sl_meeting *m) {
    atomic_store(&m->hall->seats[m->rank].touches, 1);
    if (atomic_load(&m->hall->lost) != 0) {
        sl_meeting_release(m);
        return false;
    }
    return true;
}

void sl_meeting_release(struct sl_meeting *m) {
    atomic_store(&m->hall->seats[m->rank].touches, 0);
}

// Microseconds: a thread that touches waits for nothing.
void sl_meeting_settle(struct sl_meeting *m) {
    int64_t deadline_ns = sl_deadline_in_ms(m->deadline_ms);
    for (int r = 0; r < m->size; r++) {
        while (atomic_load(&m->hall->seats[r].touches) != 0 && sl_deadline_left_ms(deadline_ns) > 0) {
            sl_sleep_ms(1);
        }
    }
}

static bool is_worse(enum sl_status a, enum sl_status b) {
    return a < 0 || b < 0 ? a < b : a > b;
}

enum sl_status sl_meeting_meet(struct sl_meeting *m, enum sl_status mine, int *whose_out, struct sl_error *err_inout) {
    struct words *words = &m->hall->seats[m->rank].words[(m->number + 1) & 1];
    const struct sl_errand errand = {.what = SL_PURPOSE_MEETING};
    words->status = mine;
    snprintf(words->text, sizeof words->text, "%s",
             mine != SL_OK && err_inout != NULL && err_inout->status == mine ? err_inout->text : sl_status_text(mine));
    enum sl_status status = sl_meeting_come(m, &errand, err_inout);
    if (status != SL_OK) {
        if (whose_out != NULL) {
            *whose_out = sl_meeting_lost(m);
        }
        return status;
    }
    int worst = -1;
    for (int r = 0; r < m->size; r++) {
        words = &m->hall->seats[r].words[m->number & 1];
        if (is_worse(words->status, status)) {
            status = words->status;
            worst = r;
        }
    }
    if (whose_out != NULL) {
        *whose_out = worst;
    }
    if (worst < 0) {
        return SL_OK;
    }
    words = &m->hall->seats[worst].words[m->number & 1];
    return sl_fail(err_inout, status, "rank %d of %d: %.*s", worst, m->size, (int)sizeof words->text - 1, words->text);
}

// --- joining and leaving -----------------------------------------------------------------------------------------------

enum sl_status sl_meeting_check(const struct sl_meeting_config *config, struct sl_error *err) {
    int rank = config->rank, size = config->size;
    if (size < 1 || size > SL_MAX_RANKS || rank < 0 || rank >= size) {
        return sl_fail(err, SL_ERR_INVALID, "rank %d of %d: sizes are 1 to %d, ranks 0 to size - 1", rank, size,
                       SL_MAX_RANKS);
    }
    if (config->hall == NULL || (uintptr_t)config->hall % LINE != 0 || config->deadline_ms < 0) {
        return sl_fail(err, SL_ERR_INVALID,
                       "rank %d of %d: a hall at a multiple of %d, and a deadline that is not below 0", rank, size,
                       LINE);
    }
    return SL_OK;
}

enum sl_status sl_meeting_join(struct sl_meeting *m, const struct sl_meeting_config *config, struct sl_error *err) {
    int rank = config->rank, size = config->size;
    enum sl_status status = sl_meeting_check(config, err);
    if (status != SL_OK) {
        return status;
    }
    *m = (struct sl_meeting){.hall = config->hall, .rank = rank, .size = size};
    m->deadline_ms = config->deadline_ms > 0 ? config->deadline_ms : SL_GROUP_DEADLINE_MS;
    uint32_t state = EMPTY;
    if (!atomic_compare_exchange_strong(&m->hall->seats[rank].state, &state, TAKEN)) {
        return sl_fail(err, SL_ERR_EXISTS, "rank %d of %d has joined this group before", rank, size);
    }
    const struct sl_errand errand = {.what = SL_PURPOSE_JOIN, .amount = (uint64_t)size, .at = config->at};
    status = sl_meeting_come(m, &errand, err);
    if (status != SL_OK) {
        sl_meeting_leave(m);
    }
    return status;
}

void sl_meeting_leave(struct sl_meeting *m) {
    struct sl_hall *hall = m->hall;
    atomic_store(&hall->seats[m->rank].state, LEFT);
    wake_all(hall);
}
