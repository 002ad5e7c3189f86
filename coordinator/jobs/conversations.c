// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/conversations.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/locked.h"
#include "engine/job/job_chat.h"

#define MAX_CONVERSATIONS 1024
#define MAX_BYTES         ((size_t)256 << 20) // of tokens
#define MAX_KEEP_MS       3600000
#define MAX_ENDED         256 // marks for turns that run meanwhile

struct point {
    struct sl_job_turn turn;
    int64_t n_tokens; // with its answer; 0: there is no such point
    uint64_t said;    // hash of its request's messages, or text, and of the answer
};

struct conversation {
    bool there;
    char tenant[SL_TENANT_BYTES];
    int32_t *tokens;    // [last.n_tokens]
    struct point last;  // after the last turn
    struct point early; // after an earlier turn, whose session a store has; a conversation can go on from there as well
    uint64_t used;      // when, in turns of all
};

// Used in the search for the tenant that uses most.
struct tenant {
    const struct conversation *one;
    double share;
};

struct ended {
    char tenant[SL_TENANT_BYTES], id[SL_CONVERSATION_ID_BYTES];
    uint64_t number; // of all that were ended, from 1
};

struct sl_conversations {
    pthread_mutex_t mutex;
    struct ended ended[MAX_ENDED]; // a ring
    uint64_t n_ended;
    struct tenant tenants[MAX_CONVERSATIONS];
    struct conversation *all; // [MAX_CONVERSATIONS]
    size_t n_bytes;
    uint64_t n_turns;
};

enum sl_status sl_conversations_create(struct sl_conversations **conversations_out, struct sl_error *err) {
    struct sl_conversations *c = calloc(1, sizeof *c);
    struct conversation *all = calloc(MAX_CONVERSATIONS, sizeof *all);
    if (!c || !all) {
        free(c);
        free(all);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for conversations");
    }
    c->all = all;
    pthread_mutex_init(&c->mutex, NULL);
    *conversations_out = c;
    return SL_OK;
}

// ---- under the lock -------------------------------------------------------------------------------------------------

static void drop(struct sl_conversations *c, struct conversation *one) {
    c->n_bytes -= sizeof *one->tokens * (size_t)one->last.n_tokens;
    free(one->tokens);
    *one = (struct conversation){0};
}

static struct conversation *find(struct sl_conversations *c, const char *tenant, const char *id) {
    for (size_t i = 0; i < MAX_CONVERSATIONS; i++) {
        struct conversation *one = &c->all[i];
        if (one->there && strcmp(one->last.turn.id, id) == 0 && strcmp(one->tenant, tenant) == 0) {
            return one;
        }
    }
    return NULL;
}

// Returns the conversation's share of the table: an entry, and its tokens.
static double share_of(const struct conversation *one) {
    return 1.0 / MAX_CONVERSATIONS + (double)one->last.n_tokens * sizeof *one->tokens / (double)MAX_BYTES;
}

// Returns the oldest conversation of the tenant that uses most, so that no tenant can push out another's conversations.
static struct conversation *oldest(struct sl_conversations *c) {
    struct tenant *tenants = c->tenants, *most = NULL;
    size_t n_tenants = 0;
    for (size_t i = 0; i < MAX_CONVERSATIONS; i++) {
        const struct conversation *one = &c->all[i];
        size_t t = 0;
        while (one->there && t < n_tenants && strcmp(tenants[t].one->tenant, one->tenant) != 0) {
            t++;
        }
        if (one->there && t == n_tenants) {
            tenants[n_tenants++] = (struct tenant){one, 0};
        }
        if (one->there) {
            tenants[t].share += share_of(one);
            most = !most || tenants[t].share > most->share ? &tenants[t] : most;
        }
    }
    struct conversation *first = NULL;
    for (size_t i = 0; i < MAX_CONVERSATIONS && most; i++) {
        struct conversation *one = &c->all[i];
        if (one->there && strcmp(one->tenant, most->one->tenant) == 0 && (!first || one->used < first->used)) {
            first = one;
        }
    }
    return first;
}

// Returns whether the conversation was ended since the turn began. Only the last MAX_ENDED ends are remembered.
static bool was_ended(const struct sl_conversations *c, const char *tenant, const struct sl_job_turn *turn) {
    for (size_t i = 0; i < MAX_ENDED; i++) {
        const struct ended *one = &c->ended[i];
        if (one->number > turn->n_ended && strcmp(one->id, turn->id) == 0 && strcmp(one->tenant, tenant) == 0) {
            return true;
        }
    }
    return false;
}

void sl_sessions_left_add(struct sl_sessions_left *left, const struct sl_job_turn *turn) {
    if (turn->lease_id[0] != '\0' && left->n < SL_MAX_LEFT) {
        struct sl_left *one = &left->of[left->n++];
        *one = (struct sl_left){0};
        strcpy(one->worker, turn->worker);
        strcpy(one->lease_id, turn->lease_id);
    }
}

static void add_copy(struct sl_sessions_left *left, const struct sl_session_copy *copy) {
    if (copy->store[0] != '\0' && left->n < SL_MAX_LEFT) {
        left->of[left->n++] = (struct sl_left){.copy = *copy};
    }
}

static void leave_all(struct sl_sessions_left *left, const struct conversation *one) {
    sl_sessions_left_add(left, &one->last.turn);
    add_copy(left, &one->last.turn.copy);
    add_copy(left, &one->early.turn.copy);
}

// Returns a free entry; evicts the oldest conversations until there is room for it and for its tokens.
static struct conversation *make_room(struct sl_conversations *c, size_t n_bytes, struct sl_sessions_left *left) {
    for (;;) {
        struct conversation *free_one = NULL;
        for (size_t i = 0; i < MAX_CONVERSATIONS && !free_one; i++) {
            free_one = c->all[i].there ? NULL : &c->all[i];
        }
        if (free_one && c->n_bytes + n_bytes <= MAX_BYTES) {
            return free_one;
        }
        struct conversation *first = oldest(c);
        if (!first) {
            return NULL;
        }
        leave_all(left, first);
        drop(c, first);
    }
}

void sl_conversations_destroy(struct sl_conversations **conversations) {
    SL_TAKE_OR_RETURN(c, conversations);
    for (size_t i = 0; i < MAX_CONVERSATIONS; i++) {
        free(c->all[i].tokens);
    }
    free(c->all);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

// ---- what was said --------------------------------------------------------------------------------------------------

// Hashes the length, too, so that two ways to cut a text never give the same hash.
static uint64_t add_text(uint64_t hash, const char *text) {
    uint64_t n = strlen(text);
    return sl_hash(text, n, sl_hash(&n, sizeof n, hash));
}

// Hashes the first n messages.
static uint64_t hash_messages(const Sluice__V1__Chat *chat, size_t n) {
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) {
        hash = add_text(add_text(hash, chat->messages[i]->role), chat->messages[i]->content);
    }
    return hash;
}

// Records the parts of the request that the next turn's request has to repeat.
static void note(const Sluice__V1__GenerateRequest *request, struct sl_job_turn *turn) {
    turn->is_chat = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    if (turn->is_chat) {
        turn->n_said = request->chat->n_messages;
        turn->said = hash_messages(request->chat, turn->n_said);
    } else if (request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        turn->n_said = strlen(request->text);
        turn->said = sl_hash(request->text, turn->n_said, 0);
    }
}

/*
 * Returns whether the request begins with a turn's text and its answer. *behind_out: where the new part begins, as an index of messages or
 * a byte offset. For text prompts, the turn has the answer's length.
 */
static bool goes_on(const struct point *before, const Sluice__V1__GenerateRequest *request, size_t *behind_out) {
    size_t n = before->turn.n_said;
    if (before->turn.is_chat && request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT) {
        const Sluice__V1__Chat *chat = request->chat;
        *behind_out = n;
        return chat->n_messages > n + 1 && hash_messages(chat, n) == before->turn.said &&
               add_text(before->turn.said, chat->messages[n]->content) == before->said;
    }
    if (!before->turn.is_chat && n > 0 && request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        size_t n_all = strlen(request->text), n_answer = before->turn.n_answer;
        *behind_out = n + n_answer;
        return n_all > n + n_answer && sl_hash(request->text, n, 0) == before->turn.said &&
               sl_hash(request->text + n, n_answer, before->turn.said) == before->said;
    }
    return false;
}

// Returns the last point of the conversation that the request continues. NULL: there is none.
static const struct point *find_point(const struct conversation *one, const Sluice__V1__GenerateRequest *request,
                                      size_t *behind_out) {
    if (goes_on(&one->last, request, behind_out)) {
        return &one->last;
    }
    return one->early.n_tokens > 0 && goes_on(&one->early, request, behind_out) ? &one->early : NULL;
}

// ---- turns ----------------------------------------------------------------------------------------------------------

static enum sl_status check(const Sluice__V1__Conversation *asked, struct sl_error *err) {
    size_t n = strlen(asked->id);
    SL_FAIL_IF(n < 1 || n >= SL_CONVERSATION_ID_BYTES, err, SL_ERR_INVALID,
               "conversation.id: has %zu bytes, must be 1 to %d", n, SL_CONVERSATION_ID_BYTES - 1);
    SL_FAIL_IF(asked->keep_ms < 0 || asked->keep_ms > MAX_KEEP_MS, err, SL_ERR_INVALID,
               "conversation.keep_ms: is %" PRId64 ", must be 0 to %d", asked->keep_ms, MAX_KEEP_MS);
    return SL_OK;
}

static uint64_t count_ended(struct sl_conversations *c) {
    SL_LOCKED(&c->mutex);
    return c->n_ended;
}

// Copies the conversation; the caller owns the copy's tokens.
static bool copy(struct sl_conversations *c, const char *tenant, const char *id, struct conversation *copy_out) {
    bool there = false;
    SL_LOCKED(&c->mutex);
    struct conversation *one = find(c, tenant, id);
    if (one) {
        *copy_out = *one;
        copy_out->tokens = malloc(sizeof *one->tokens * (size_t)(one->last.n_tokens + 1));
        there = copy_out->tokens != NULL;
        if (there) {
            memcpy(copy_out->tokens, one->tokens, sizeof *one->tokens * (size_t)one->last.n_tokens);
        }
    }
    return there;
}

// Encodes the text after the answer. SL_ERR_PRECONDITION: the template changes the text before it.
static enum sl_status encode_new(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                 size_t behind, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    if (request->prompt_case != SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT) {
        const char *text = request->text + behind;
        return sl_tokenizer_encode(rules->tokenizer, text, strlen(text), false, ids_out, n_ids_out, err);
    }
    return rules->chat_template ? sl_job_chat_turn(rules->chat_template, rules->tokenizer, request->chat, behind,
                                                   ids_out, n_ids_out, err)
                                : SL_ERR_PRECONDITION;
}

// Joins the tokens of the conversation and the new ones.
static enum sl_status join(const struct conversation *before, int64_t n_tokens, const int32_t *ids, size_t n_ids,
                           struct sl_turn_prompt *prompt_out, struct sl_error *err) {
    size_t n_before = (size_t)n_tokens;
    int32_t *tokens = malloc(sizeof *tokens * (n_before + n_ids + 1));
    SL_FAIL_IF(!tokens, err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu tokens", n_before + n_ids);
    memcpy(tokens, before->tokens, sizeof *tokens * n_before);
    memcpy(tokens + n_before, ids, sizeof *tokens * n_ids);
    *prompt_out = (struct sl_turn_prompt){tokens, (int64_t)(n_before + n_ids)};
    return SL_OK;
}

enum sl_status sl_conversations_begin_turn(struct sl_conversations *c, const struct sl_request_rules *rules,
                                           const char *tenant, const Sluice__V1__GenerateRequest *request,
                                           struct sl_job_turn *turn_out, struct sl_turn_prompt *prompt_out,
                                           struct sl_error *err) {
    const Sluice__V1__Conversation *asked = request->conversation;
    struct conversation before;
    struct sl_job_turn turn = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, behind;
    uint64_t n_ended = count_ended(c); // before anything is looked up
    *prompt_out = (struct sl_turn_prompt){0};
    SL_TRY(check(asked, err));
    enum sl_status status = SL_OK;
    if (copy(c, tenant, asked->id, &before)) {
        const struct point *point = find_point(&before, request, &behind);
        status = point ? encode_new(rules, request, behind, &ids, &n_ids, err) : SL_ERR_PRECONDITION;
        if (status == SL_OK && n_ids > 0) {
            turn = point->turn;
            if (point == &before.last) {
                turn.earlier = before.early.turn.copy;
            } else { // the later turn has its session; a repeated request wants another answer: draw another seed
                turn.lease_id[0] = turn.worker[0] = '\0';
                turn.has_seed = false;
            }
            status = join(&before, point->n_tokens, ids, n_ids, prompt_out, err);
        }
        free(ids);
        free(before.tokens);
    }
    if (status != SL_OK && status != SL_ERR_PRECONDITION) {
        return status;
    }
    strcpy(turn.id, asked->id);
    turn.n_ended = n_ended;
    turn.keep_ms = asked->keep_ms;
    note(request, &turn);
    *turn_out = turn;
    return SL_OK;
}

// A collision costs one refused attempt: the worker compares the fingerprints of the recipes.
static uint64_t hash_recipe(const struct sl_job_spec *spec) {
    return sl_hash(spec->recipe, strlen(spec->recipe), 0) | 1; // never 0
}

enum sl_status sl_conversations_plan_turn(const struct sl_request_rules *rules, struct sl_job_spec *spec,
                                          struct sl_error *err) {
    struct sl_job_turn *turn = &spec->turn;
    int rope_set = sl_model_rope_set(rules->model, spec->n_tokens + spec->max_new_tokens);
    uint64_t recipe_hash = hash_recipe(spec);
    if (turn->recipe_hash != recipe_hash || turn->rope_set != rope_set) {
        turn->n_kept = 0;
        turn->earlier = (struct sl_session_copy){0};
    }
    if (turn->n_kept < 1 || turn->n_kept >= spec->n_tokens) {
        turn->n_kept = 0;
        turn->history = (struct sl_hash128){{0}};
        turn->copy = (struct sl_session_copy){0};
    }
    turn->recipe_hash = recipe_hash;
    turn->rope_set = rope_set;
    if (turn->n_kept == 0) {
        return SL_OK;
    }
    struct sl_kv_geometry geometry = sl_model_geometry(rules->model);
    return sl_demand_make_turn(&spec->parsed_recipe, &geometry, turn->kept_bytes,
                               spec->n_tokens - turn->n_kept + spec->max_new_tokens, &turn->demand, err);
}

// Returns the last other point, with a session in a store, from which the conversation can go on with all of these tokens.
static const struct point *point_before(const struct conversation *one, const struct sl_job_spec *spec,
                                        const int32_t *tokens, int64_t n_tokens) {
    const struct point *points[] = {&one->last, &one->early};
    uint64_t recipe_hash = hash_recipe(spec);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const struct point *point = points[i];
        if (point->turn.copy.store[0] != '\0' && point->n_tokens < n_tokens && point->turn.recipe_hash == recipe_hash &&
            point->turn.rope_set == spec->turn.rope_set &&
            memcmp(one->tokens, tokens, sizeof *tokens * (size_t)point->n_tokens) == 0) {
            return point;
        }
    }
    return NULL;
}

// Adds to `left` the conversation's sessions and copies, except those that `turn` and `early` keep.
static void leave_others(struct sl_sessions_left *left, const struct conversation *one, const struct sl_job_turn *turn,
                         const struct point *early) {
    const struct sl_session_copy *copies[] = {&one->last.turn.copy, &one->early.turn.copy};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        if (!sl_hash128_equals(&copies[i]->history, &turn->history) &&
            !sl_hash128_equals(&copies[i]->history, &early->turn.copy.history)) {
            add_copy(left, copies[i]);
        }
    }
    if (strcmp(one->last.turn.lease_id, turn->lease_id) != 0) {
        sl_sessions_left_add(left, &one->last.turn);
    }
}

void sl_conversations_end_turn(struct sl_conversations *c, const struct sl_job_spec *spec,
                               const struct sl_job_turn *turn, const int32_t *tokens, int64_t n_tokens,
                               const char *answer, struct sl_sessions_left *left) {
    size_t n_bytes = sizeof *tokens * (size_t)n_tokens;
    int32_t *kept = malloc(n_bytes + 1);
    SL_LOCKED(&c->mutex);
    bool ended = was_ended(c, spec->tenant, turn);
    struct conversation *one = ended ? NULL : find(c, spec->tenant, turn->id);
    struct point early = {0};
    if (one) {
        const struct point *point = point_before(one, spec, tokens, n_tokens);
        early = point ? *point : early;
        leave_others(left, one, turn, &early);
        drop(c, one);
    }
    one = kept && !ended && n_bytes <= MAX_BYTES ? make_room(c, n_bytes, left) : NULL;
    if (one) {
        memcpy(kept, tokens, n_bytes);
        *one = (struct conversation){
            .there = true, .tokens = kept, .last = {*turn, n_tokens, 0}, .early = early, .used = ++c->n_turns};
        strcpy(one->tenant, spec->tenant);
        one->last.turn.recipe_hash = hash_recipe(spec);
        one->last.turn.n_answer = strlen(answer);
        one->last.turn.earlier = (struct sl_session_copy){0};
        one->last.said =
            turn->is_chat ? add_text(turn->said, answer) : sl_hash(answer, one->last.turn.n_answer, turn->said);
        c->n_bytes += n_bytes;
    } else {
        sl_sessions_left_add(left, turn);
        add_copy(left, &turn->copy);
        add_copy(left, &early.turn.copy);
        free(kept);
    }
}

bool sl_conversations_copied(struct sl_conversations *c, const char *tenant, const char *id,
                             const struct sl_session_copy *copy) {
    SL_LOCKED(&c->mutex);
    struct conversation *one = find(c, tenant, id);
    bool wanted = one && one->last.turn.n_kept > 0 && sl_hash128_equals(&one->last.turn.history, &copy->history);
    if (wanted) {
        one->last.turn.copy = *copy;
    }
    return wanted;
}

bool sl_conversations_forget(struct sl_conversations *c, const char *tenant, const char *id,
                             struct sl_sessions_left *left) {
    SL_LOCKED(&c->mutex);
    struct conversation *one = find(c, tenant, id);
    bool there = one != NULL;
    struct ended *mark = &c->ended[c->n_ended % MAX_ENDED];
    mark->number = ++c->n_ended;
    snprintf(mark->tenant, sizeof mark->tenant, "%s", tenant);
    snprintf(mark->id, sizeof mark->id, "%s", id);
    if (one) {
        leave_all(left, one);
        drop(c, one);
    }
    return there;
}
