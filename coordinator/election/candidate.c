// SPDX-License-Identifier: Apache-2.0
// Purpose: see candidate.h. Read from the bottom up.
#include "coordinator/election/candidate.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"

#define POLL_MS  250 // how often a standby polls the leader key
#define AGAIN_MS 150 // after a failure

void sl_candidate_init(struct sl_candidate *candidate, const struct sl_candidate_config *config) {
    *candidate = (struct sl_candidate){.config = *config};
    pthread_mutex_init(&candidate->mutex, NULL);
}

void sl_candidate_cleanup(struct sl_candidate *candidate) {
    pthread_mutex_destroy(&candidate->mutex);
}

static int64_t now(const struct sl_candidate *candidate) {
    return candidate->config.now_fn();
}

// ---- for other threads --------------------------------------------------------------------------------------------

static bool leads(const struct sl_candidate *candidate) {
    return candidate->term != 0 && now(candidate) < candidate->led_until_ns;
}

int64_t sl_candidate_term(struct sl_candidate *candidate) {
    SL_LOCKED(&candidate->mutex);
    return leads(candidate) ? candidate->term : 0;
}

int64_t sl_candidate_last_term(struct sl_candidate *candidate) {
    SL_LOCKED(&candidate->mutex);
    return candidate->last_term;
}

void sl_candidate_leader(struct sl_candidate *candidate, char leader_out[SL_LEADER_BYTES]) {
    SL_LOCKED(&candidate->mutex);
    strcpy(leader_out, leads(candidate) ? candidate->config.address : candidate->leader);
}

// Called under the lock.
static void stop_leading(struct sl_candidate *candidate, const char *why) {
    if (candidate->term != 0) {
        sl_log_warn("election", "term=%" PRId64 " is over: %s", candidate->term, why);
    }
    candidate->term = candidate->led_until_ns = 0;
}

void sl_candidate_withdraw(struct sl_candidate *candidate) {
    SL_LOCKED(&candidate->mutex);
    if (!candidate->withdrawn) {
        stop_leading(candidate, "this coordinator ends");
        candidate->withdrawn = true;
    }
}

// ---- results ------------------------------------------------------------------------------------------------------

static int64_t fail(struct sl_candidate *candidate, const char *what, const struct sl_error *err) {
    if (!candidate->complained) {
        sl_log_warn("election", "%s: %s", what, err->text);
    }
    candidate->complained = true;
    if (candidate->lease == 0) { // without a lease the key was not read, so the leader is unknown
        SL_LOCKED(&candidate->mutex);
        candidate->leader[0] = '\0';
    }
    return now(candidate) + AGAIN_MS * SL_NS_PER_MS;
}

static void heard(struct sl_candidate *candidate) {
    if (candidate->complained) {
        sl_log_info("election", "etcd answers again");
    }
    candidate->complained = false;
}

// Records that we hold the leader key, by a lease that was granted or renewed since began_ns.
static int64_t lead(struct sl_candidate *candidate, const struct sl_leader_key *key, int64_t began_ns) {
    heard(candidate);
    SL_LOCKED(&candidate->mutex);
    if (!candidate->withdrawn) {
        bool fenced = candidate->term != 0 && now(candidate) >= candidate->led_until_ns;
        if (candidate->term != key->term) {
            sl_log_info("election", "this coordinator leads, term=%" PRId64, key->term);
        } else if (fenced) {
            sl_log_info("election", "this coordinator leads again, term=%" PRId64, key->term);
        }
        if (key->term < candidate->last_term) {
            sl_log_error("election",
                         "term=%" PRId64 " is lower than %" PRId64
                         " before: was etcd created again? Workers refuse it until they are restarted",
                         key->term, candidate->last_term);
        }
        candidate->term = candidate->last_term = key->term;
        candidate->led_until_ns = began_ns + candidate->config.fence_ms * SL_NS_PER_MS;
        candidate->leader[0] = '\0';
    }
    return began_ns + candidate->config.renew_ms * SL_NS_PER_MS;
}

// Records that another candidate holds the leader key.
static int64_t follow(struct sl_candidate *candidate, const struct sl_leader_key *key) {
    heard(candidate);
    SL_LOCKED(&candidate->mutex);
    stop_leading(candidate, "another coordinator leads");
    if (strcmp(candidate->leader, key->holder) != 0) {
        sl_log_info("election", "%s leads, term=%" PRId64, key->holder, key->term);
    }
    strcpy(candidate->leader, key->holder);
    return now(candidate) + POLL_MS * SL_NS_PER_MS;
}

// ---- actions -------------------------------------------------------------------------------------------------------

// Revokes the lease, which is useless without the leader key; a lease that cannot be revoked expires.
static void drop_lease(struct sl_candidate *candidate) {
    struct sl_error err = {0};
    if (candidate->lease != 0 &&
        candidate->config.ops->revoke(candidate->config.arg, candidate->lease, &err) != SL_OK) {
        sl_log_info("election", "the lease could not be revoked, and expires: %s", err.text);
    }
    candidate->lease = 0;
}

static int64_t lose_lease(struct sl_candidate *candidate) {
    candidate->lease = 0;
    SL_WITH_LOCK(&candidate->mutex, stop_leading(candidate, "the lease has ended"));
    return now(candidate);
}

// Records who holds the leader key.
static int64_t see(struct sl_candidate *candidate, const struct sl_leader_key *key, int64_t began_ns) {
    if (key->lease == candidate->lease) {
        return lead(candidate, key, began_ns);
    }
    drop_lease(candidate);
    return follow(candidate, key);
}

static int64_t take(struct sl_candidate *candidate, int64_t began_ns) {
    const struct sl_candidate_config *config = &candidate->config;
    struct sl_leader_key key;
    struct sl_error err = {0};
    enum sl_status status = config->ops->take(config->arg, candidate->lease, config->address, &key, &err);
    if (status == SL_ERR_NOT_FOUND) {
        return lose_lease(candidate);
    }
    return status == SL_OK ? see(candidate, &key, began_ns) : fail(candidate, "the leader key cannot be taken", &err);
}

static int64_t stand(struct sl_candidate *candidate) {
    const struct sl_candidate_config *config = &candidate->config;
    struct sl_leader_key key;
    struct sl_error err = {0};
    enum sl_status status = config->ops->look(config->arg, &key, &err);
    if (status == SL_OK) {
        return follow(candidate, &key);
    }
    if (status != SL_ERR_NOT_FOUND) {
        return fail(candidate, "the leader is not known", &err);
    }
    pthread_mutex_lock(&candidate->mutex);
    candidate->leader[0] = '\0';
    bool withdrawn = candidate->withdrawn;
    pthread_mutex_unlock(&candidate->mutex);
    int64_t began_ns = now(candidate);
    if (withdrawn) {
        return began_ns + POLL_MS * SL_NS_PER_MS;
    }
    status = config->ops->grant(config->arg, config->ttl_ms, &candidate->lease, &err);
    if (status != SL_OK) {
        candidate->lease = 0;
        return fail(candidate, "no lease is granted", &err);
    }
    return take(candidate, began_ns);
}

static int64_t keep(struct sl_candidate *candidate) {
    const struct sl_candidate_config *config = &candidate->config;
    struct sl_leader_key key;
    struct sl_error err = {0};
    int64_t began_ns = now(candidate);
    enum sl_status status = config->ops->renew(config->arg, candidate->lease, &err);
    if (status == SL_ERR_NOT_FOUND) {
        return lose_lease(candidate);
    }
    if (status != SL_OK) {
        return fail(candidate, "the lease cannot be renewed", &err);
    }
    status = config->ops->look(config->arg, &key, &err);
    if (status == SL_ERR_NOT_FOUND) { // the key was removed, or our take was lost on its way
        return take(candidate, began_ns);
    }
    return status == SL_OK ? see(candidate, &key, began_ns) : fail(candidate, "the leader is not known", &err);
}

int64_t sl_candidate_step(struct sl_candidate *candidate) {
    bool withdrawn;
    SL_WITH_LOCK(&candidate->mutex, withdrawn = candidate->withdrawn);
    if (withdrawn) {
        drop_lease(candidate);
    }
    return candidate->lease != 0 ? keep(candidate) : stand(candidate);
}

void sl_candidate_leave(struct sl_candidate *candidate) {
    sl_candidate_withdraw(candidate);
    drop_lease(candidate);
}
