// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: start, stop, regions, gauges, and the progress thread.
 *
 * Design: the progress thread turns one loop: commands of other threads, UCX, new connections, the clock (heartbeats,
 *         deadlines, quarantines), lines, fetches, ships. When nothing has moved for SL_SPIN_NS it sleeps in poll() on UCX's
 *         descriptor and on an eventfd, never past the next tick: the clock does not depend on new work.
 *         Sleeping is announced (sleeping = true) before the last look for work; a poster first publishes its work
 *         and then looks at `sleeping`; all of that is sequentially consistent, so that one of the two sees the other.
 *         UCX is started on that thread too, and its creator waits for at most SL_START_NS: a start that hangs keeps
 *         its thread and memory, which cannot be taken from it, and nothing else.
 */
#include "fabric/fabric.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "fabric/line.h"

// ---- talking to the progress thread --------------------------------------------------------------------------------

void sl_fabric_wake(struct sl_fabric *fabric) {
    if (atomic_load(&fabric->sleeping)) {
        uint64_t one = 1;
        ssize_t n = write(fabric->wake_fd, &one, sizeof one); // EAGAIN: it has been told often enough
        (void)n;
    }
}

void *sl_fabric_take_buffer(struct sl_fabric *fabric) {
    return fabric->n_buffers > 0 ? fabric->buffers[--fabric->n_buffers] : malloc(SL_SEGMENT_MAX_BYTES);
}

void sl_fabric_give_buffer(struct sl_fabric *fabric, void *buffer) {
    if (buffer && fabric->n_buffers < SL_N_BUFFERS) {
        fabric->buffers[fabric->n_buffers++] = buffer;
    } else {
        free(buffer);
    }
}

void sl_fabric_post(struct sl_fabric *fabric, struct sl_command *command) {
    command->next = NULL;
    pthread_mutex_lock(&fabric->lock);
    *fabric->last = command;
    fabric->last = &command->next;
    atomic_store(&fabric->posted, true);
    pthread_mutex_unlock(&fabric->lock);
    sl_fabric_wake(fabric);
}

static bool run_commands(struct sl_fabric *fabric) {
    if (!atomic_exchange(&fabric->posted, false)) {
        return false;
    }
    pthread_mutex_lock(&fabric->lock);
    struct sl_command *command = fabric->first;
    fabric->first = NULL;
    fabric->last = &fabric->first;
    pthread_mutex_unlock(&fabric->lock);
    while (command) {
        struct sl_command *next = command->next; // run() may free it
        command->run(fabric, command);
        command = next;
    }
    return true;
}

void sl_fabric_unexpected(struct sl_fabric *fabric, const char *what, size_t bytes) {
    fabric->n_unexpected++;
    int64_t now = sl_now_ns();
    if (now - fabric->complained_ns > SL_NS_PER_S) {
        fabric->complained_ns = now;
        sl_log_warn("fabric", "dropped message=%s bytes=%zu dropped_so_far=%llu", what, bytes,
                    (unsigned long long)fabric->n_unexpected);
    }
}

// ---- the loop ------------------------------------------------------------------------------------------------------

static void sleep_until_work(struct sl_fabric *fabric, int64_t now_ns) {
    atomic_store(&fabric->sleeping, true);
    bool work = atomic_load(&fabric->posted) || atomic_load(&fabric->stopping);
    for (struct sl_ship *ship = fabric->ships; ship && !work; ship = ship->next) {
        work = atomic_load(&ship->work);
    }
    if (!work && ucp_worker_arm(fabric->worker) == UCS_OK) {
        struct pollfd fds[2] = {{fabric->worker_fd, POLLIN, 0}, {fabric->wake_fd, POLLIN, 0}};
        int64_t left_ms = (fabric->next_tick_ns - now_ns) / SL_NS_PER_MS + 1;
        poll(fds, 2, left_ms < 1 ? 1 : (int)left_ms);
        if (fds[1].revents) {
            uint64_t count;
            ssize_t n = read(fabric->wake_fd, &count, sizeof count);
            (void)n;
        }
    }
    atomic_store(&fabric->sleeping, false);
}

// One turn. Returns whether anything moved.
static bool turn(struct sl_fabric *fabric, int64_t now_ns) {
    bool moved = run_commands(fabric);
    for (int i = 0; i < 16 && ucp_worker_progress(fabric->worker) > 0; i++) {
        moved = true;
    }
    if (fabric->n_connecting > 0) {
        sl_peers_accept(fabric);
        moved = true;
    }
    if (fabric->peers_changed) {
        sl_peers_settle(fabric);
    }
    if (now_ns >= fabric->next_tick_ns) {
        int64_t period = fabric->config.heartbeat_ms * SL_NS_PER_MS / 4;
        fabric->next_tick_ns = now_ns + (period < SL_TICK_MAX_NS ? period : SL_TICK_MAX_NS);
        sl_peers_tick(fabric, now_ns);
        sl_ships_tick(fabric, now_ns);
        sl_grants_tick(fabric, now_ns);
        sl_asks_tick(fabric, now_ns);
        sl_questions_tick(fabric, now_ns);
        sl_fetches_tick(fabric, now_ns);
    }
    moved |= sl_lines_pump(fabric);
    moved |= sl_fetches_pump(fabric, now_ns);
    return sl_ships_pump(fabric, now_ns) || moved;
}

static void run(struct sl_fabric *fabric) {
    int64_t moved_ns = sl_now_ns();
    while (!atomic_load(&fabric->stopping)) {
        int64_t now = sl_now_ns();
        if (turn(fabric, now)) {
            moved_ns = now;
        } else if (now - moved_ns > SL_SPIN_NS) {
            sleep_until_work(fabric, now);
        } else {
            sched_yield(); // who prepares the next message may be waiting for this very processor
        }
    }
}

// Turn until `done` or for at most ms.
static bool turn_until(struct sl_fabric *fabric, bool (*done)(const struct sl_fabric *fabric), int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    while (!done(fabric)) {
        int64_t now = sl_now_ns();
        if (now > deadline) {
            return false;
        }
        if (!turn(fabric, now)) {
            sched_yield();
        }
    }
    return true;
}

static bool ships_over(const struct sl_fabric *fabric) {
    for (const struct sl_ship *ship = fabric->ships; ship; ship = ship->next) {
        if (ship->state != SHIP_ENDED) {
            return false;
        }
    }
    return true;
}

static bool sends_over(const struct sl_fabric *fabric) {
    for (const struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->n_requests > 0) {
            return false;
        }
    }
    return true;
}

static bool peers_over(const struct sl_fabric *fabric) {
    return fabric->peers == NULL;
}

// Everybody is told, everything is closed; then no callback of UCX can come any more.
static void wind_down(struct sl_fabric *fabric) {
    sl_gate_shut(fabric->gate);
    run_commands(fabric);
    sl_lines_end_all(fabric, "this fabric stops");
    sl_questions_tick(fabric, sl_now_ns());
    sl_ships_end_all(fabric, "this fabric stops");
    sl_grants_end_all(fabric);
    turn_until(fabric, ships_over, 500);
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        peer->parting = true;
        if (peer->state == PEER_UP) {
            sl_peer_tell(peer, SL_WIRE_BYE, NULL, 0);
        } else {
            sl_peer_close(peer, SL_ERR_CANCELLED, "this fabric stops"); // nobody there whom BYE could reach
        }
    }
    turn_until(fabric, sends_over, 200);
    // Whoever hears BYE closes. Were we to close first, the news of it, which over shared memory takes another way than
    // messages, could overtake BYE: a peer that was not scheduled for a while would take an orderly stop for a loss.
    turn_until(fabric, peers_over, SL_PART_MS);
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        sl_peer_close(peer, SL_ERR_CANCELLED, "this fabric stops");
    }
    if (!turn_until(fabric, peers_over, 5000)) {
        sl_log_error("fabric", "connections do not close; their memory stays registered");
    }
    turn_until(fabric, ships_over, 500);
    run_commands(fabric);
    sl_ships_end_all(fabric, NULL);
    sl_grants_release_all(fabric);
    sl_fetches_release_all(fabric);
}

static void free_fabric(struct sl_fabric *fabric) {
    while (fabric->n_buffers > 0) {
        free(fabric->buffers[--fabric->n_buffers]);
    }
    close(fabric->wake_fd);
    pthread_mutex_destroy(&fabric->lock);
    pthread_cond_destroy(&fabric->changed);
    free(fabric->grants);
    free(fabric->windows);
    free(fabric->asks.at);
    free(fabric->asks.n_uses);
    sl_gate_unref(fabric->gate);
    free((char *)fabric->config.listen);
    free(fabric);
}

static void *progress_main(void *arg) {
    struct sl_fabric *fabric = arg;
    struct sl_error err = {0};
    enum sl_status status = sl_fabric_ucx_start(fabric, &err);
    pthread_mutex_lock(&fabric->lock);
    bool abandoned = fabric->abandoned;
    fabric->started = true;
    fabric->start_error = err;
    fabric->start_error.status = status;
    pthread_cond_broadcast(&fabric->changed);
    pthread_mutex_unlock(&fabric->lock);
    if (abandoned) { // nobody waits any more: this thread owns everything
        if (status == SL_OK) {
            sl_fabric_ucx_stop(fabric);
        }
        free_fabric(fabric);
        return NULL;
    }
    if (status == SL_OK) {
        run(fabric);
        wind_down(fabric);
        if (!fabric->peers) {
            sl_fabric_ucx_stop(fabric);
        }
    }
    return NULL;
}

// ---- start and stop ------------------------------------------------------------------------------------------------

static enum sl_status parse_transport(const char *name, enum sl_transport *transport_out, struct sl_error *err) {
    static const char *const names[] = {"auto", "shm", "tcp", "rdma"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *transport_out = (enum sl_transport)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "transport \"%s\": expected auto, shm, tcp or rdma", name);
}

// "corrupt:3,drop_final:1,stall:2". To add one: a member of struct sl_inject and a line here.
static enum sl_status parse_inject(const char *text, struct sl_inject *inject, struct sl_error *err) {
    const struct {
        const char *name;
        uint64_t *n;
    } faults[] = {{"corrupt", &inject->corrupt},       {"drop_final", &inject->drop_final}, {"stall", &inject->stall},
                  {"drop_reply", &inject->drop_reply}, {"slow_reply", &inject->slow_reply}, {"get", &inject->get}};
    while (text && *text) {
        int used = 0;
        char name[16];
        unsigned long long n = 0;
        if (sscanf(text, "%15[a-z_]:%llu%n", name, &n, &used) != 2 || (text[used] != ',' && text[used] != '\0')) {
            return sl_fail(err, SL_ERR_INVALID, "fault injection \"%s\": expected NAME:N[,NAME:N...]", text);
        }
        size_t i = 0;
        while (i < sizeof faults / sizeof *faults && strcmp(name, faults[i].name) != 0) {
            i++;
        }
        if (i == sizeof faults / sizeof *faults) {
            return sl_fail(err, SL_ERR_INVALID, "fault injection \"%s\": no such fault", name);
        }
        *faults[i].n = n;
        text += used + (text[used] == ',');
    }
    return SL_OK;
}

// Shared memory is only looked for where the kernel is the same one.
static uint64_t host_id(void) {
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot_id, sizeof boot_id, file)) {
            boot_id[0] = '\0';
        }
        fclose(file);
    }
    return sl_hash(boot_id, strlen(boot_id), 0);
}

static enum sl_status fill(struct sl_fabric *fabric, const struct sl_fabric_config *config, struct sl_error *err) {
    fabric->config.heartbeat_ms = config->heartbeat_ms > 0 ? config->heartbeat_ms : 1000;
    fabric->last = &fabric->first;
    fabric->host_id = host_id();
    fabric->gate = sl_gate_create(fabric);
    if (!fabric->gate) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a fabric");
    }
    uint64_t seeds[2];
    if (getrandom(seeds, sizeof seeds, 0) != (ssize_t)sizeof seeds) {
        return sl_fail(err, SL_ERR_IO, "no random numbers: %s", strerror(errno));
    }
    fabric->epoch = seeds[0] | 1;
    fabric->next_generation = seeds[1] >> 16;
    enum sl_status status = parse_transport(config->transport ? config->transport : "auto", &fabric->transport, err);
    if (status == SL_OK) {
        status = parse_inject(config->inject, &fabric->inject, err);
    }
    if (status == SL_OK && config->listen) {
        fabric->config.listen = strdup(config->listen);
        status = fabric->config.listen ? sl_fabric_device(fabric, err)
                                       : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a fabric");
    }
    return status;
}

enum sl_status sl_fabric_create(const struct sl_fabric_config *config, struct sl_fabric **fabric_out,
                                struct sl_error *err) {
    struct sl_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a fabric");
    }
    pthread_mutex_init(&fabric->lock, NULL);
    sl_cond_init(&fabric->changed);
    fabric->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum sl_status status = fabric->wake_fd >= 0 ? fill(fabric, config, err)
                                                 : sl_fail(err, SL_ERR_EXHAUSTED, "eventfd: %s", strerror(errno));
    if (status == SL_OK) {
        status = sl_thread_start("fabric", progress_main, fabric, &fabric->thread, err);
    }
    if (status != SL_OK) {
        free_fabric(fabric);
        return status;
    }
    int64_t deadline = sl_now_ns() + SL_START_NS;
    pthread_t thread = fabric->thread;
    pthread_mutex_lock(&fabric->lock);
    while (!fabric->started && sl_cond_wait_until(&fabric->changed, &fabric->lock, deadline) == SL_OK) {
    }
    bool started = fabric->started;
    fabric->abandoned = !started;
    pthread_mutex_unlock(&fabric->lock);
    if (!started) {
        pthread_detach(thread);
        return sl_fail(err, SL_ERR_DEADLINE, "UCX has not started within %lld s",
                       (long long)(SL_START_NS / SL_NS_PER_S));
    }
    if (fabric->start_error.status != SL_OK) {
        pthread_join(thread, NULL);
        status = sl_fail(err, fabric->start_error.status, "%s", fabric->start_error.text);
        free_fabric(fabric);
        return status;
    }
    *fabric_out = fabric;
    return SL_OK;
}

void sl_fabric_destroy(struct sl_fabric **fabric) {
    if (!fabric || !*fabric) {
        return;
    }
    atomic_store(&(*fabric)->stopping, true);
    sl_fabric_wake(*fabric);
    pthread_join((*fabric)->thread, NULL);
    if (!(*fabric)->peers) { // else UCX still holds pointers into it
        free_fabric(*fabric);
    }
    *fabric = NULL;
}

const char *sl_fabric_address(const struct sl_fabric *fabric) {
    return fabric->address;
}

uint64_t sl_fabric_epoch(const struct sl_fabric *fabric) {
    return fabric->epoch;
}

// ---- regions -------------------------------------------------------------------------------------------------------

struct region_command {
    struct sl_command command;
    size_t bytes;
    bool lock, done;
    enum sl_status status;
    void *base;
    struct sl_error *err;
};

static enum sl_status lock_memory(void *base, size_t bytes, struct sl_error *err) {
    if (mlock(base, bytes) == 0) {
        return SL_OK;
    }
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return sl_fail(err, SL_ERR_PRECONDITION,
                   "cannot lock %zu bytes of memory: %s; the limit is %llu bytes (raise it with ulimit -l)", bytes,
                   strerror(errno), (unsigned long long)limit.rlim_cur);
}

static enum sl_status map_region(struct sl_fabric *fabric, size_t bytes, bool lock, struct sl_region *region,
                                 struct sl_error *err) {
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = bytes,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    ucs_status_t ucs = ucp_mem_map(fabric->context, &params, &region->handle);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_fabric_from_ucs(ucs), "cannot register %zu bytes: %s", bytes, ucs_status_string(ucs));
    }
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    ucs = ucp_mem_query(region->handle, &attr);
    enum sl_status status = SL_OK;
    if (ucs == UCS_OK) {
        region->base = attr.address;
        region->bytes = bytes;
        ucs = ucp_rkey_pack(fabric->context, region->handle, &region->rkey, &region->rkey_bytes);
    }
    if (ucs != UCS_OK) {
        status = sl_fail(err, sl_fabric_from_ucs(ucs), "registered memory: %s", ucs_status_string(ucs));
    } else if (lock && (status = lock_memory(region->base, bytes, err)) != SL_OK) {
        ucp_rkey_buffer_release(region->rkey);
    }
    if (status != SL_OK) {
        ucp_mem_unmap(fabric->context, region->handle);
    }
    return status;
}

static void run_region_create(struct sl_fabric *fabric, struct sl_command *command) {
    struct region_command *call = (struct region_command *)command;
    struct sl_region *region = calloc(1, sizeof *region);
    enum sl_status status = region ? map_region(fabric, call->bytes, call->lock, region, call->err)
                                   : sl_fail(call->err, SL_ERR_EXHAUSTED, "no memory for a region");
    pthread_mutex_lock(&fabric->lock);
    if (status == SL_OK) {
        region->next = fabric->regions;
        fabric->regions = region;
        call->base = region->base;
    } else {
        free(region);
    }
    call->status = status;
    call->done = true;
    pthread_cond_broadcast(&fabric->changed);
    pthread_mutex_unlock(&fabric->lock);
}

enum sl_status sl_fabric_region_create(struct sl_fabric *fabric, size_t bytes, int lock, void **base_out,
                                       struct sl_error *err) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0 || bytes > SIZE_MAX - page) {
        return sl_fail(err, SL_ERR_INVALID, "a region of %zu bytes", bytes);
    }
    struct region_command call = {
        .command.run = run_region_create, .bytes = (bytes + page - 1) / page * page, .lock = lock != 0, .err = err};
    sl_fabric_post(fabric, &call.command);
    pthread_mutex_lock(&fabric->lock);
    while (!call.done) { // commands always run, in wind_down() at the latest
        pthread_cond_wait(&fabric->changed, &fabric->lock);
    }
    pthread_mutex_unlock(&fabric->lock);
    if (call.status == SL_OK) {
        *base_out = call.base;
    }
    return call.status;
}

// Regions are never taken off the list before the fabric stops, so the result may be used without the lock.
struct sl_region *sl_fabric_region(struct sl_fabric *fabric, const void *data, size_t bytes) {
    pthread_mutex_lock(&fabric->lock);
    struct sl_region *region = fabric->regions;
    while (region && !((const uint8_t *)data >= region->base && bytes <= region->bytes &&
                       (size_t)((const uint8_t *)data - region->base) <= region->bytes - bytes)) {
        region = region->next;
    }
    pthread_mutex_unlock(&fabric->lock);
    return region;
}

// ---- gauges --------------------------------------------------------------------------------------------------------

void sl_fabric_get_stats(struct sl_fabric *fabric, struct sl_fabric_stats *stats_out) {
    *stats_out = (struct sl_fabric_stats){
        .bytes_sent = atomic_load(&fabric->stats.bytes_sent),
        .bytes_received = atomic_load(&fabric->stats.bytes_received),
        .pieces_sent = atomic_load(&fabric->stats.pieces_sent),
        .pieces_received = atomic_load(&fabric->stats.pieces_received),
        .peers_lost = atomic_load(&fabric->stats.peers_lost),
        .digests_wrong = atomic_load(&fabric->stats.digests_wrong),
        .stale_refused = atomic_load(&fabric->stats.stale_refused),
        .grants_open = atomic_load(&fabric->stats.grants_open),
        .grants_quarantined = atomic_load(&fabric->stats.grants_quarantined),
        .ships_open = atomic_load(&fabric->stats.ships_open),
        .peers_connected = atomic_load(&fabric->stats.peers_connected),
        .lines_open = atomic_load(&fabric->stats.lines_open),
        .asks_open = atomic_load(&fabric->stats.asks_open),
        .questions_open = atomic_load(&fabric->stats.questions_open),
        .windows_open = atomic_load(&fabric->stats.windows_open),
        .fetches_open = atomic_load(&fabric->stats.fetches_open),
    };
}
