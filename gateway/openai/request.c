// SPDX-License-Identifier: Apache-2.0
// Purpose: see request.h. Read from the bottom up: the table of fields, and the function for each.
#include "gateway/openai/request.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"
#include "gateway/openai/messages.h"
#include "gateway/openai/unused.h"

enum { MAX_TOP_LOGPROBS = 20 };

struct taking {
    struct sl_openai_request *request;
    const char *name; // name of the field
    const json_t *value;
    struct sl_refusal *refusal;
};

static enum sl_status wrong_type(const struct taking *taking, const char *expected) {
    return sl_refuse_field(taking->refusal, taking->name, "%s: expected %s", taking->name, expected);
}

static enum sl_status no_memory(struct sl_refusal *refusal) {
    sl_refuse(refusal, 503, "no memory for the request");
    return SL_ERR_EXHAUSTED;
}

// Reads an integer. In a body with an integer of more than 64 bits, the parser gave them all as reals.
static bool integer_of(const struct sl_openai_request *request, const json_t *value, int64_t *out) {
    const double real = json_real_value(value);
    const bool is_whole =
        request->has_long_integers && json_is_real(value) && fabs(real) <= 0x1p53 && floor(real) == real;
    *out = is_whole ? (int64_t)real : (int64_t)json_integer_value(value);
    return is_whole || json_is_integer(value);
}

static enum sl_status take_integer(const struct taking *taking, int64_t min, int64_t max, int64_t *out) {
    if (!integer_of(taking->request, taking->value, out)) {
        return taking->request->has_long_integers && json_is_real(taking->value)
                   ? sl_refuse_field(taking->refusal, taking->name, "%s: is %.17g, must be an integer, %lld to %lld",
                                     taking->name, json_real_value(taking->value), (long long)min, (long long)max)
                   : wrong_type(taking, "an integer");
    }
    return *out >= min && *out <= max
               ? SL_OK
               : sl_refuse_field(taking->refusal, taking->name, "%s: is %lld, must be %lld to %lld", taking->name,
                                 (long long)*out, (long long)min, (long long)max);
}

static enum sl_status take_real(const struct taking *taking, float *out) {
    if (!json_is_number(taking->value)) {
        return wrong_type(taking, "a number");
    }
    SL_REFUSE_FIELD_IF(fabs(json_number_value(taking->value)) >= 1e9, taking->refusal, taking->name,
                       "%s: is %g, must be -1e9 to 1e9", taking->name, json_number_value(taking->value));
    *out = (float)json_number_value(taking->value);
    return SL_OK;
}

static void note_ignored(struct sl_openai_request *request, enum sl_openai_place place, const char *name) {
    sl_openai_note_ignored(place, name, request->ignored, sizeof request->ignored);
}

static enum sl_status take_boolean(const struct taking *taking, bool *out) {
    if (!json_is_boolean(taking->value)) {
        return wrong_type(taking, "true or false");
    }
    *out = json_is_true(taking->value);
    return SL_OK;
}

// ---- the prompt -----------------------------------------------------------------------------------------------------

static enum sl_status take_model(const struct taking *taking) {
    taking->request->model = json_string_value(taking->value);
    return taking->request->model ? SL_OK : wrong_type(taking, "a string");
}

static enum sl_status take_messages(const struct taking *taking) {
    return sl_openai_take_messages(taking->request, taking->value, taking->refusal);
}

// Takes token ids. ids_out->ids is malloc'd, also on failure.
static enum sl_status take_ids(const struct taking *taking, const json_t *ids, Sluice__V1__TokenIds *ids_out) {
    if (ids_out->ids) { // read from the text, and the list is empty
        return SL_OK;
    }
    size_t n = json_array_size(ids), i;
    ids_out->ids = malloc((n + 1) * sizeof *ids_out->ids);
    if (!ids_out->ids) {
        return no_memory(taking->refusal);
    }
    const json_t *id;
    json_array_foreach(ids, i, id) {
        int64_t number = -1;
        SL_REFUSE_FIELD_IF(!integer_of(taking->request, id, &number) || number < 0 || number > INT32_MAX,
                           taking->refusal, taking->name, "prompt[%zu]: expected a token's id", i);
        ids_out->ids[i] = (int32_t)number;
    }
    ids_out->n_ids = n;
    return SL_OK;
}

static enum sl_status take_one_prompt(const struct taking *taking, const json_t *prompt,
                                      struct sl_openai_prompt *prompt_out) {
    prompt_out->text = (char *)json_string_value(prompt);
    if (prompt_out->text) {
        return SL_OK;
    }
    return json_is_array(prompt) ? take_ids(taking, prompt, &prompt_out->tokens)
                                 : wrong_type(taking, "a text or token ids, or a list of one kind of these");
}

static enum sl_status take_prompt(const struct taking *taking) {
    struct sl_openai_request *request = taking->request;
    const json_t *prompt = taking->value, *first = json_array_get(prompt, 0), *one;
    const bool is_list = json_is_string(first) || json_is_array(first);
    const size_t n = is_list ? json_array_size(prompt) : 1;
    SL_REFUSE_FIELD_IF(n > SL_OPENAI_MAX_PROMPTS, taking->refusal, taking->name, "prompt: %zu prompts, at most %d", n,
                       SL_OPENAI_MAX_PROMPTS);
    if (n > 1) {
        struct sl_openai_prompt *prompts = calloc(n, sizeof *prompts);
        if (!prompts) {
            return no_memory(taking->refusal);
        }
        prompts[0] = request->prompts[0];
        request->prompts = prompts;
    }
    request->n_prompts = n;
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        one = is_list ? json_array_get(prompt, i) : prompt;
        if (i > 0) {
            sluice__v1__token_ids__init(&request->prompts[i].tokens);
        }
        status = is_list && json_typeof(one) != json_typeof(first)
                     ? wrong_type(taking, "a text or token ids, or a list of one kind of these")
                     : take_one_prompt(taking, one, &request->prompts[i]);
    }
    if (status == SL_OK) {
        sl_openai_request_select(request, 0);
    }
    return status;
}

static enum sl_status take_stop(const struct taking *taking) {
    struct sl_openai_request *request = taking->request;
    const json_t *one = taking->value;
    bool is_list = json_is_array(one);
    size_t n = is_list ? json_array_size(one) : 1;
    SL_REFUSE_FIELD_IF(n > SL_OPENAI_MAX_STOPS, taking->refusal, taking->name, "stop: at most %d", SL_OPENAI_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const char *stop = json_string_value(is_list ? json_array_get(taking->value, i) : one);
        if (!stop) {
            return wrong_type(taking, "a string or a list of strings");
        }
        request->stops[i] = (char *)stop;
    }
    request->message.stop = request->stops;
    request->message.n_stop = n;
    return SL_OK;
}

static enum sl_status take_max_tokens(const struct taking *taking) {
    int64_t n = 0;
    SL_TRY(take_integer(taking, 1, INT32_MAX, &n));
    taking->request->message.max_new_tokens_present_case =
        SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    taking->request->message.max_new_tokens = (int32_t)n;
    return SL_OK;
}

// ---- sampling -------------------------------------------------------------------------------------------------------

// Define the function of a number of the sampling settings. The second macro is for those that the model may set, too.
#define TAKE_REAL(field)                                                                                               \
    static enum sl_status take_##field(const struct taking *taking) {                                                  \
        return take_real(taking, &taking->request->sampling.field);                                                    \
    }
#define TAKE_PRESENT_REAL(field, FIELD)                                                                                \
    static enum sl_status take_##field(const struct taking *taking) {                                                  \
        taking->request->sampling.field##_present_case = SLUICE__V1__SAMPLING__##FIELD;                                \
        return take_real(taking, &taking->request->sampling.field);                                                    \
    }

TAKE_PRESENT_REAL(temperature, TEMPERATURE_PRESENT_TEMPERATURE)
TAKE_PRESENT_REAL(top_p, TOP_P_PRESENT_TOP_P)
TAKE_PRESENT_REAL(repetition_penalty, REPETITION_PENALTY_PRESENT_REPETITION_PENALTY)
TAKE_PRESENT_REAL(min_p, MIN_P_PRESENT_MIN_P)
TAKE_REAL(frequency_penalty)
TAKE_REAL(presence_penalty)

static enum sl_status take_top_k(const struct taking *taking) {
    int64_t k = 0;
    enum sl_status status = take_integer(taking, -1, INT32_MAX, &k);
    taking->request->sampling.top_k_present_case = SLUICE__V1__SAMPLING__TOP_K_PRESENT_TOP_K;
    taking->request->sampling.top_k = status == SL_OK && k > 0 ? (int32_t)k : 0; // other servers also use -1 for off
    return status;
}

static enum sl_status take_seed(const struct taking *taking) {
    int64_t seed = 0;
    enum sl_status status = take_integer(taking, INT64_MIN, INT64_MAX, &seed);
    taking->request->sampling.seed_present_case = SLUICE__V1__SAMPLING__SEED_PRESENT_SEED;
    taking->request->sampling.seed = status == SL_OK ? (uint64_t)seed : 0;
    return status;
}

static enum sl_status take_logprobs(const struct taking *taking) {
    struct sl_openai_request *request = taking->request;
    if (request->is_chat) {
        return take_boolean(taking, &request->wants_logprobs);
    }
    if (json_is_false(taking->value)) { // a chat's word for none
        return SL_OK;
    }
    int64_t n = 0;
    enum sl_status status = take_integer(taking, 0, MAX_TOP_LOGPROBS, &n);
    request->wants_logprobs = status == SL_OK;
    request->n_top_logprobs = status == SL_OK ? (int)n : 0;
    return status;
}

static enum sl_status take_top_logprobs(const struct taking *taking) {
    int64_t n = 0;
    enum sl_status status = take_integer(taking, 0, MAX_TOP_LOGPROBS, &n);
    taking->request->n_top_logprobs = status == SL_OK ? (int)n : 0;
    return status;
}

static enum sl_status take_stream(const struct taking *taking) {
    return take_boolean(taking, &taking->request->stream);
}

static enum sl_status take_stream_options(const struct taking *taking) {
    const char *key;
    json_t *value;
    if (!json_is_object(taking->value)) {
        return wrong_type(taking, "an object");
    }
    json_object_foreach((json_t *)taking->value, key, value) {
        struct taking option = {taking->request, "stream_options.include_usage", value, taking->refusal};
        bool is_known;
        if (strcmp(key, "include_usage") != 0) {
            SL_REFUSE_FIELD_IF(!sl_openai_asks_nothing(SL_OPENAI_STREAM_OPTIONS, key, value, &is_known),
                               taking->refusal, taking->name, "stream_options.%.40s is not supported", key);
            note_ignored(taking->request, SL_OPENAI_STREAM_OPTIONS, key);
            continue;
        }
        SL_TRY(json_is_null(value) ? SL_OK : take_boolean(&option, &taking->request->include_usage));
    }
    return SL_OK;
}

// ---- fields of Sluice -----------------------------------------------------------------------------------------------

// Rejects a request with both recipe and ship_at_most, because each chooses the recipe.
static enum sl_status check_only_choice(const struct taking *taking) {
    return taking->request->message.recipe[0] == '\0'
               ? SL_OK
               : sl_refuse_field(taking->refusal, taking->name,
                                 "recipe, ship_at_most: each chooses the recipe: give one of them");
}

static enum sl_status take_recipe(const struct taking *taking) {
    SL_TRY(check_only_choice(taking));
    taking->request->message.recipe = (char *)json_string_value(taking->value);
    return taking->request->message.recipe ? SL_OK : wrong_type(taking, "a string");
}

static enum sl_status take_document(const struct taking *taking) {
    taking->request->message.document = (char *)json_string_value(taking->value);
    return taking->request->message.document ? SL_OK : wrong_type(taking, "a string");
}

static enum sl_status take_documents(const struct taking *taking) {
    struct sl_openai_request *request = taking->request;
    size_t n = json_array_size(taking->value);
    bool fits = n >= 1 && n <= SL_OPENAI_MAX_DOCUMENTS;
    for (size_t i = 0; fits && i < n; i++) {
        request->documents[i] = (char *)json_string_value(json_array_get(taking->value, i));
        fits = request->documents[i] != NULL;
    }
    SL_REFUSE_FIELD_IF(!fits, taking->refusal, taking->name, "documents: expected a list of 1 to %d names",
                       SL_OPENAI_MAX_DOCUMENTS);
    request->message.documents = request->documents;
    request->message.n_documents = n;
    return SL_OK;
}

static enum sl_status take_reread(const struct taking *taking) {
    json_int_t n = json_integer_value(taking->value);
    SL_REFUSE_FIELD_IF(!json_is_integer(taking->value) || n < 0 || n > INT32_MAX, taking->refusal, "reread",
                       "reread: expected an integer, 0 or more");
    taking->request->message.reread_present_case = SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD;
    taking->request->message.reread = (int32_t)n;
    return SL_OK;
}

enum sl_status sl_openai_take_share(const json_t *percent, bool later, char **recipe_out, struct sl_refusal *refusal) {
    static const char name[] = "ship_at_most";
    SL_REFUSE_FIELD_IF(!json_is_number(percent), refusal, name, "%s: expected a number", name);
    const struct sl_recommendation *recommended = sl_recipe_recommend(json_number_value(percent) / 100, later);
    SL_REFUSE_FIELD_IF(!recommended, refusal, name, "%s: no recommended recipe ships so little", name);
    *recipe_out = (char *)recommended->recipe;
    return SL_OK;
}

static enum sl_status take_ship_at_most(const struct taking *taking) {
    Sluice__V1__GenerateRequest *message = &taking->request->message;
    SL_TRY(check_only_choice(taking));
    return sl_openai_take_share(taking->value, message->document[0] || message->n_documents > 0, &message->recipe,
                                taking->refusal);
}

static enum sl_status take_ignore_eos(const struct taking *taking) {
    bool ignore = false;
    enum sl_status status = take_boolean(taking, &ignore);
    taking->request->message.ignore_eos = status == SL_OK && ignore;
    return status;
}

static enum sl_status take_reuse(const struct taking *taking) {
    bool reuse = true;
    enum sl_status status = take_boolean(taking, &reuse);
    taking->request->message.no_reuse = status == SL_OK && !reuse;
    return status;
}

static enum sl_status take_deadline_ms(const struct taking *taking) {
    // Int32, because the gateway adds to it
    return take_integer(taking, 1, INT32_MAX, &taking->request->message.deadline_ms);
}

// ---- the table ------------------------------------------------------------------------------------------------------

enum { CHAT = 1, COMPLETION = 2, BOTH = 3 };

// If two fields set the same thing, the later row wins.
static const struct field {
    const char *name;
    int where;
    enum sl_status (*take)(const struct taking *taking);
} fields[] = {
    {"model", BOTH, take_model},
    {"messages", CHAT, take_messages},
    {"prompt", COMPLETION, take_prompt},
    {"stop", BOTH, take_stop},
    {"max_tokens", BOTH, take_max_tokens},
    {"max_completion_tokens", CHAT, take_max_tokens},
    {"temperature", BOTH, take_temperature},
    {"top_p", BOTH, take_top_p},
    {"frequency_penalty", BOTH, take_frequency_penalty},
    {"presence_penalty", BOTH, take_presence_penalty},
    {"seed", BOTH, take_seed},
    {"logprobs", BOTH, take_logprobs},
    {"top_logprobs", CHAT, take_top_logprobs},
    {"stream", BOTH, take_stream},
    {"stream_options", BOTH, take_stream_options},
    // Fields of Sluice, and fields that other servers add to OpenAI's.
    {"recipe", BOTH, take_recipe},
    {"document", BOTH, take_document},
    {"documents", BOTH, take_documents},
    {"ship_at_most", BOTH, take_ship_at_most}, // depends on documents
    {"reread", BOTH, take_reread},
    {"top_k", BOTH, take_top_k},
    {"min_p", BOTH, take_min_p},
    {"repetition_penalty", BOTH, take_repetition_penalty},
    {"ignore_eos", BOTH, take_ignore_eos},
    {"reuse", BOTH, take_reuse},
    {"deadline_ms", BOTH, take_deadline_ms},
};

static bool is_used(const char *name, int where) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].where & where) && strcmp(fields[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

// Returns true if a field is absent or empty. A prompt's ids leave an empty list, because they were read from the text, and
// a question about no document is refused.
static bool is_left_out(const struct field *field, const json_t *value) {
    const bool needs_entries =
        field->take == take_prompt || field->take == take_messages || field->take == take_documents;
    return !value || json_is_null(value) || (!needs_entries && sl_openai_is_empty(value));
}

static enum sl_status take_fields(struct sl_openai_request *request, struct sl_refusal *refusal) {
    int where = request->is_chat ? CHAT : COMPLETION;
    const char *name;
    json_t *value;
    json_object_foreach(request->json, name, value) {
        bool is_known;
        if (is_used(name, where)) {
            continue;
        }
        if (!sl_openai_asks_nothing(SL_OPENAI_TOP, name, value, &is_known)) {
            return is_known ? sl_refuse_field(refusal, name, "%s is not supported", name)
                            : sl_refuse_field(refusal, strlen(name) < sizeof refusal->param ? name : "",
                                              "unknown field \"%.60s\"", name);
        }
        note_ignored(request, SL_OPENAI_TOP, name);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct taking taking = {request, fields[i].name, json_object_get(request->json, fields[i].name), refusal};
        if ((fields[i].where & where) && !is_left_out(&fields[i], taking.value)) {
            SL_TRY(fields[i].take(&taking));
        }
    }
    return SL_OK;
}

static enum sl_status check_together(struct sl_openai_request *request, struct sl_refusal *refusal) {
    if (request->message.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT__NOT_SET) {
        const char *name = request->is_chat ? "messages" : "prompt";
        return sl_refuse_field(refusal, name, "%s is missing", name);
    }
    SL_REFUSE_FIELD_IF(request->include_usage && !request->stream, refusal, "stream_options",
                       "stream_options: only with stream");
    SL_REFUSE_FIELD_IF(request->n_top_logprobs > 0 && !request->wants_logprobs, refusal, "top_logprobs",
                       "top_logprobs: only with logprobs");
    if (request->wants_logprobs) { // a token's own bytes come with alternatives
        request->sampling.logprobs = request->n_top_logprobs > 0 ? request->n_top_logprobs : 1;
    }
    return SL_OK;
}

// Writes the path of the first string with U+0000 after the n bytes of `path`: "messages[0].content". False: there is
// none.
static bool find_zero(const json_t *value, char *path, size_t path_bytes, size_t n) {
    if (json_is_string(value)) {
        return memchr(json_string_value(value), '\0', json_string_length(value)) != NULL;
    }
    size_t i;
    const char *key;
    json_t *inner;
    json_array_foreach(value, i, inner) {
        const int written = snprintf(path + n, path_bytes - n, "[%zu]", i);
        if (find_zero(inner, path, path_bytes, n + (size_t)written < path_bytes ? n + (size_t)written : n)) {
            return true;
        }
    }
    json_object_foreach((json_t *)value, key, inner) {
        const int written = snprintf(path + n, path_bytes - n, "%s%.40s", n ? "." : "", key);
        if (find_zero(inner, path, path_bytes, n + (size_t)written < path_bytes ? n + (size_t)written : n)) {
            return true;
        }
    }
    return false;
}

// Names the field with U+0000. No text of the cluster may contain it, and jansson only reports an error at a byte.
static enum sl_status refuse_syntax(const char *body, size_t n_bytes, struct sl_json_memory *memory,
                                    const json_error_t *error, struct sl_refusal *refusal) {
    char path[256] = "";
    json_t *whole =
        json_error_code(error) == json_error_null_character
            ? sl_json_parse(body, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, memory, NULL, NULL, refusal)
            : NULL;
    const bool is_zero = whole && find_zero(whole, path, sizeof path, 0);
    json_decref(whole);
    if (is_zero && path[0]) {
        char field[sizeof refusal->param];
        snprintf(field, sizeof field, "%.*s", (int)strcspn(path, ".["), path);
        return sl_refuse_field(refusal, field, "%s: the character U+0000 is not allowed", path);
    }
    return sl_refuse_field(refusal, "", "the body is not JSON: %s at byte %d", error->text, error->position);
}

static enum sl_status parse(const char *body, size_t n_bytes, struct sl_json_memory *memory,
                            struct sl_openai_request *request, struct sl_refusal *refusal) {
    json_error_t error;
    struct sl_json_ids ids = {0};
    struct sl_json_ids *ids_out = request->is_chat ? NULL : &ids;
    request->json = sl_json_parse(body, n_bytes, JSON_REJECT_DUPLICATES, memory, ids_out, &error, refusal);
    if (!request->json && refusal->http_status == 0 && json_error_code(&error) == json_error_numeric_overflow) {
        request->has_long_integers = true; // a field that Sluice does not use may have them
        request->json = sl_json_parse(body, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, memory, ids_out,
                                      &error, refusal);
    }
    if (!request->json) {
        return refusal->http_status != 0 ? SL_ERR_EXHAUSTED : refuse_syntax(body, n_bytes, memory, &error, refusal);
    }
    SL_REFUSE_FIELD_IF(!json_is_object(request->json), refusal, "", "the body is JSON, but not an object");
    sluice__v1__generate_request__init(&request->message);
    sluice__v1__sampling__init(&request->sampling);
    sluice__v1__token_ids__init(&request->one.tokens);
    request->one.tokens.ids = ids.ids;
    request->one.tokens.n_ids = ids.n;
    SL_REFUSE_FIELD_IF(ids.n_good < ids.n, refusal, "prompt", "prompt[%zu]: expected a token's id", ids.n_good);
    request->sampling.usual_temperature = 1; // OpenAI's default, if the model defines none
    request->message.sampling = &request->sampling;
    SL_TRY(take_fields(request, refusal));
    return check_together(request, refusal);
}

void sl_openai_request_select(struct sl_openai_request *request, size_t i) {
    struct sl_openai_prompt *prompt = &request->prompts[i];
    if (prompt->text) {
        request->message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        request->message.text = prompt->text;
    } else {
        request->message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
        request->message.tokens = &prompt->tokens;
    }
}

enum sl_status sl_openai_request_parse(bool is_chat, const char *body, size_t n_bytes, struct sl_json_memory *memory,
                                       struct sl_openai_request **request_out, struct sl_refusal *refusal) {
    struct sl_openai_request *request = calloc(1, sizeof *request);
    if (!request) {
        return no_memory(refusal);
    }
    request->is_chat = is_chat;
    request->prompts = &request->one;
    request->n_prompts = 1;
    SL_TRY_OR(parse(body, n_bytes, memory, request, refusal), sl_openai_request_destroy(&request));
    *request_out = request;
    return SL_OK;
}

void sl_openai_request_destroy(struct sl_openai_request **request_ptr) {
    SL_TAKE_OR_RETURN(request, request_ptr);
    for (size_t i = 0; request->joined && i < request->chat.n_messages; i++) {
        free(request->joined[i]);
    }
    free(request->joined);
    free(request->message_list);
    free(request->messages);
    for (size_t i = 0; i < request->n_prompts; i++) {
        free(request->prompts[i].tokens.ids);
    }
    if (request->prompts != &request->one) {
        free(request->prompts);
    }
    json_decref(request->json);
    free(request);
}
