// SPDX-License-Identifier: Apache-2.0
#include "client/cli/jsonl/ask.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "engine/compress/plan/plan.h"
#include "engine/job/job_recipe.h"

static json_t *hex(uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *describe_model(const struct sl_jsonl_model *m, const json_t *line, struct sl_refusal *refusal) {
    (void)line;
    (void)refusal;
    json_t *presets = json_array();
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        json_array_append_new(presets, json_string(preset->name));
    }
    return json_pack("{s:o, s:s, s:o, s:o, s:I, s:o}", "model", sl_text_json(m->dir), "weights", m->weights,
                     "fingerprint", hex(m->fingerprint), "tokenizer", hex(sl_tokenizer_fingerprint(m->tokenizer)),
                     "max_model_len", (json_int_t)m->config->max_positions, "presets", presets);
}

// Returns a text member; NULL: the request is refused.
static const char *text_of(const json_t *line, const char *name, struct sl_refusal *refusal) {
    const char *text = json_string_value(json_object_get(line, name));
    if (!text) {
        sl_refuse_field(refusal, name, "%s: expected a string", name);
    }
    return text;
}

static json_t *tokenize(const struct sl_jsonl_model *m, const json_t *line, struct sl_refusal *refusal) {
    const char *prompt = text_of(line, "prompt", refusal);
    int32_t *ids = NULL;
    size_t n = 0;
    struct sl_error err = {0};
    if (!prompt) {
        return NULL;
    }
    enum sl_status status = sl_tokenizer_encode(m->tokenizer, prompt, strlen(prompt), true, &ids, &n, &err);
    if (status != SL_OK) {
        sl_refuse_error(refusal, &err);
        return NULL;
    }
    json_t *tokens = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(tokens, json_integer(ids[i]));
    }
    free(ids);
    return json_pack("{s:I, s:I, s:o}", "count", (json_int_t)n, "max_model_len", (json_int_t)m->config->max_positions,
                     "tokens", tokens);
}

static enum sl_status add_plan(const struct sl_jsonl_model *m, const char *text, int64_t n_tokens, json_t *reply,
                               struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(m->config);
    struct sl_recipe recipe;
    struct sl_plan *plan = malloc(sizeof *plan);
    SL_FAIL_IF(!plan, err, SL_ERR_EXHAUSTED, "no memory for a plan");
    enum sl_status status = sl_job_recipe(text, m->config, &recipe, err);
    SL_THEN(status, sl_plan_make(&recipe, &geometry, n_tokens, 0, plan, err));
    if (status == SL_OK) {
        json_object_set_new(reply, "offloaded_bytes", json_integer((json_int_t)sl_plan_offloaded_bytes(plan)));
    }
    free(plan);
    return status;
}

static json_t *describe_recipe(const struct sl_jsonl_model *m, const json_t *line, struct sl_refusal *refusal) {
    const char *text = text_of(line, "recipe", refusal);
    const json_t *tokens = json_object_get(line, "tokens");
    struct sl_recipe recipe;
    struct sl_error err = {0};
    char canonical[SL_RECIPE_TEXT_BYTES];
    if (!text) {
        return NULL;
    }
    if (tokens && !(json_integer_value(tokens) > 0)) {
        sl_refuse_field(refusal, "tokens", "tokens: expected an integer above 0");
        return NULL;
    }
    enum sl_status status = sl_recipe_parse(text, &recipe, &err);
    json_t *reply = NULL;
    if (status == SL_OK) {
        bool offloads = sl_recipe_offloads(&recipe) || recipe.offload_auto || recipe.offload_from >= 0;
        reply = json_pack("{s:s, s:b, s:b, s:b}", "recipe", sl_recipe_format(&recipe, canonical, sizeof canonical),
                          "evicts", sl_recipe_evicts(&recipe), "names_budget", sl_recipe_names_budget(text), "offloads",
                          offloads);
    }
    SL_THEN(status, tokens ? add_plan(m, text, json_integer_value(tokens), reply, &err) : SL_OK);
    if (status != SL_OK) {
        json_decref(reply);
        sl_refuse_error(refusal, &err);
        return NULL;
    }
    return reply;
}

json_t *sl_jsonl_ask(const struct sl_jsonl_model *model, const json_t *line, struct sl_refusal *refusal) {
    static const struct {
        const char *name;
        json_t *(*ask)(const struct sl_jsonl_model *model, const json_t *line, struct sl_refusal *refusal);
    } operations[] = {{"model", describe_model}, {"tokenize", tokenize}, {"recipe", describe_recipe}};
    const char *name = json_string_value(json_object_get(line, "operation"));
    for (size_t i = 0; name && i < sizeof operations / sizeof operations[0]; i++) {
        if (strcmp(name, operations[i].name) == 0) {
            return operations[i].ask(model, line, refusal);
        }
    }
    sl_refuse_field(refusal, "operation", "operation: expected model, tokenize, recipe, reserve or document");
    return NULL;
}
