// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: plans from JSON files. See plan.h.
 *
 * Design: a function reports an error in its own value; the loop over a list prepends the position, and the file name
 *         comes first: "plan.json: recipes[2]: there is no member "recpe"; did you mean "recipe"?". The reading keeps
 *         the first failure. Values that are read after it count as missing, so only loops need to check for it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/similar.h"
#include "lab/eval/tasks/benchmark.h"
#include "lab/eval/tasks/plan.h"

#define MAX_PLAN_BYTES (16 << 20)

// --- values ------------------------------------------------------------------------------------------------------

struct reading {
    const char *data_dir;
    struct sl_eval_plan *plan;
    json_t *root;
    enum sl_status status; // status of the first failure; err describes it
    struct sl_error *err;
};

static bool good(const struct reading *r) {
    return r->status == SL_OK;
}

__attribute__((format(printf, 2, 3))) static void fail(struct reading *r, const char *format, ...) {
    if (good(r)) {
        char text[sizeof r->err->text];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        r->status = sl_fail(r->err, SL_ERR_INVALID, "%s", text);
    }
}

// Copies a text; NULL for NULL.
static char *copy(struct reading *r, const char *text) {
    char *made = text ? strdup(text) : NULL;
    if (good(r) && text && !made) {
        r->status = sl_fail(r->err, SL_ERR_EXHAUSTED, "no memory for a plan");
    }
    return made;
}

// Rejects members that are not in `members`, which is NULL-terminated.
static void check_members(struct reading *r, json_t *object, const char *const *members) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        struct sl_similar meant = {.word = key};
        const char *const *member = members;
        while (*member && strcmp(*member, key) != 0) {
            sl_similar_offer(&meant, *member++);
        }
        if (good(r) && !*member) {
            r->status = sl_similar_fail(&meant, "member", r->err);
        }
    }
}

// Returns a text member; NULL if there is none.
static const char *get_text(struct reading *r, json_t *object, const char *name, bool required) {
    json_t *value = good(r) ? json_object_get(object, name) : NULL;
    if (value && !(json_is_string(value) && json_string_length(value) > 0)) {
        fail(r, "\"%s\" must be a text", name);
    }
    if (!value && required) {
        fail(r, "there is no \"%s\"", name);
    }
    return good(r) ? json_string_value(value) : NULL;
}

static int64_t get_integer(struct reading *r, json_t *object, const char *name, int64_t least, int64_t most,
                           int64_t usual) {
    json_t *value = json_object_get(object, name);
    if (value && (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most)) {
        fail(r, "\"%s\" must be an integer from %" PRId64 " to %" PRId64, name, least, most);
    }
    return value ? json_integer_value(value) : usual;
}

static double get_number(struct reading *r, json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (value && !json_is_number(value)) {
        fail(r, "\"%s\" must be a number", name);
    }
    return json_number_value(value); // 0 if there is none
}

static bool get_bool(struct reading *r, json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (value && !json_is_boolean(value)) {
        fail(r, "\"%s\" must be true or false", name);
    }
    return json_is_true(value);
}

// Returns a list member; NULL if there is none.
static json_t *get_list(struct reading *r, json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (value && (!json_is_array(value) || json_array_size(value) == 0)) {
        fail(r, "\"%s\" must be a list of one or more", name);
    }
    return good(r) ? value : NULL;
}

// Reads every element of a list, if there is one; errors get the element's position.
static void each(struct reading *r, const char *name, void (*read)(struct reading *, json_t *)) {
    json_t *list = get_list(r, r->root, name), *element;
    size_t i;
    json_array_foreach(list, i, element) {
        read(r, element);
        if (!good(r)) {
            char where[64];
            snprintf(where, sizeof where, "%s[%zu]", name, i);
            sl_error_prefix(r->err, where);
            return;
        }
    }
}

// --- recipes -----------------------------------------------------------------------------------------------------

static void add_recipe_at(struct reading *r, const char *name, const char *recipe, json_t *budget) {
    char text[32];
    snprintf(text, sizeof text, "%.12g", json_number_value(budget));
    if (!json_is_string(budget) && !json_is_number(budget)) {
        fail(r, "a budget must be a number or a text such as \"5%%\"");
    }
    if (good(r)) {
        const char *written = json_is_string(budget) ? json_string_value(budget) : text;
        r->status = sl_eval_plan_add_recipe(r->plan, name, written, recipe, r->err);
    }
}

static void read_recipe(struct reading *r, json_t *element) {
    static const char *const members[] = {"name", "recipe", "budgets", NULL};
    const char *name = json_string_value(element), *recipe = name;
    json_t *budgets = NULL, *budget;
    if (json_is_object(element)) {
        check_members(r, element, members);
        recipe = get_text(r, element, "recipe", true);
        name = get_text(r, element, "name", false);
        budgets = get_list(r, element, "budgets");
        name = name ? name : recipe;
    } else if (!name) {
        fail(r, "a recipe must be a text or {\"name\", \"recipe\", \"budgets\"}");
    }
    if (good(r) && !budgets && !strstr(recipe, "{budget}")) {
        r->status = sl_eval_plan_add_recipe(r->plan, name, "", recipe, r->err);
        return;
    }
    budgets = budgets ? budgets : json_object_get(r->root, "budgets");
    if (!json_is_array(budgets) || json_array_size(budgets) == 0) {
        fail(r, "recipe %.64s has a place for {budget}, and there are no \"budgets\"", name ? name : "");
    }
    size_t i;
    json_array_foreach(budgets, i, budget) {
        add_recipe_at(r, name, recipe, budget);
    }
}

// --- cells -------------------------------------------------------------------------------------------------------

static void add_task(struct reading *r, const struct sl_task *task, int64_t n_tokens, double depth, int64_t n_samples) {
    if (good(r)) {
        r->status = sl_eval_plan_add_task(r->plan, task, n_tokens, depth, n_samples, r->err);
    }
}

static void add_depths(struct reading *r, const struct sl_task *task, int64_t n_tokens, int64_t n_samples) {
    json_t *depths = get_list(r, r->root, "depths"), *depth;
    if (!depths) {
        add_task(r, task, n_tokens, -1, n_samples);
    }
    size_t i;
    json_array_foreach(depths, i, depth) {
        if (!json_is_number(depth) || json_number_value(depth) < 0) {
            fail(r, "\"depths\" must be numbers from 0 to 1");
        }
        add_task(r, task, n_tokens, json_number_value(depth), n_samples);
    }
}

static void read_task(struct reading *r, json_t *element) {
    if (!json_is_string(element)) {
        fail(r, "a task must be a text");
        return;
    }
    const struct sl_task *task = sl_task_find(json_string_value(element));
    if (!task) {
        struct sl_similar meant = {.word = json_string_value(element)};
        for (task = sl_tasks(); task->name; task++) {
            sl_similar_offer(&meant, task->name);
        }
        r->status = sl_similar_fail(&meant, "task", r->err);
        return;
    }
    int64_t n_samples = get_integer(r, r->root, "samples", 1, 1000000, 20);
    json_t *lengths = get_list(r, r->root, "lengths"), *length;
    if (!lengths) {
        fail(r, "tasks need \"lengths\": how many tokens their prompts have");
    }
    size_t i;
    json_array_foreach(lengths, i, length) {
        if (!json_is_integer(length)) {
            fail(r, "\"lengths\" must be integers: tokens");
        }
        add_depths(r, task, json_integer_value(length), n_samples);
    }
}

// Splits "longbench/hotpotqa" into format and name, which is a task of the benchmark. NULL on failure.
static const char *split_dataset(struct reading *r, const char *text, char *format, size_t format_bytes) {
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : 0;
    if (n == 0 || n >= format_bytes) {
        fail(r, "\"%.64s\" is not of the form FORMAT/NAME", text);
        return NULL;
    }
    memcpy(format, text, n);
    format[n] = '\0';
    if (!sl_benchmark_find(format, slash + 1)) {
        fail(r, "%.64s is not a task that we know; write {\"name\", \"format\", \"file\", \"metric\", ...}", text);
    }
    return slash + 1;
}

static void read_dataset_members(struct reading *r, json_t *element, struct sl_dataset_config *config) {
    static const char *const members[] = {"name",           "format",  "file",       "prompt", "metric",
                                          "max_new_tokens", "samples", "first_line", NULL};
    check_members(r, element, members);
    config->name = get_text(r, element, "name", true);
    config->format = get_text(r, element, "format", true);
    config->path = get_text(r, element, "file", false);
    config->prompt = get_text(r, element, "prompt", false);
    config->metric = get_text(r, element, "metric", false);
    config->max_new_tokens = (int)get_integer(r, element, "max_new_tokens", 1, 1 << 20, 0);
    config->max_samples = get_integer(r, element, "samples", 1, INT64_MAX, 0);
    config->first_line = get_bool(r, element, "first_line");
}

// Returns a path in the data folder, unless the file's path is absolute. The caller frees it.
static char *data_path(const char *data_dir, const struct sl_dataset_config *config) {
    char *path = NULL;
    int n;
    if (!config->path) {
        n = asprintf(&path, "%s/%s/%s.jsonl", data_dir, config->format, config->name);
    } else if (config->path[0] == '/') {
        n = asprintf(&path, "%s", config->path);
    } else {
        n = asprintf(&path, "%s/%s", data_dir, config->path);
    }
    return n < 0 ? NULL : path;
}

static void read_dataset(struct reading *r, json_t *element) {
    struct sl_dataset_config config = {0};
    char format[32];
    if (json_is_string(element)) {
        config.name = split_dataset(r, json_string_value(element), format, sizeof format);
        config.format = format;
    } else if (json_is_object(element)) {
        read_dataset_members(r, element, &config);
    } else {
        fail(r, "a data set must be a text or {\"name\", \"format\", ...}");
    }
    if (!good(r)) {
        return;
    }
    char *path = data_path(r->data_dir, &config);
    config.path = path;
    r->status = path ? sl_eval_plan_add_dataset(r->plan, &config, r->err)
                     : sl_fail(r->err, SL_ERR_EXHAUSTED, "no memory for a path");
    free(path);
}

// --- claims ------------------------------------------------------------------------------------------------------

static char *get_recipe_name(struct reading *r, json_t *element, const char *member) {
    struct sl_similar meant = {.word = get_text(r, element, member, true)};
    for (size_t i = 0; good(r) && i < r->plan->n_recipes; i++) {
        if (strcmp(r->plan->recipes[i].name, meant.word) == 0) {
            return copy(r, meant.word);
        }
        sl_similar_offer(&meant, r->plan->recipes[i].name);
    }
    r->status = good(r) ? sl_similar_fail(&meant, "recipe", r->err) : r->status;
    return NULL;
}

static void read_claim_tasks(struct reading *r, json_t *element, struct sl_plan_claim *claim) {
    json_t *tasks = get_list(r, element, "tasks"), *task;
    claim->tasks = tasks ? calloc(json_array_size(tasks), sizeof *claim->tasks) : NULL;
    if (tasks && !claim->tasks) {
        r->status = sl_fail(r->err, SL_ERR_EXHAUSTED, "no memory for a claim");
        return;
    }
    size_t i;
    json_array_foreach(tasks, i, task) {
        struct sl_similar meant = {.word = json_is_string(task) ? json_string_value(task) : ""};
        size_t c = 0;
        while (c < r->plan->n_cells && strcmp(r->plan->cells[c].name, meant.word) != 0) {
            sl_similar_offer(&meant, r->plan->cells[c++].name);
        }
        if (c == r->plan->n_cells) {
            r->status = sl_similar_fail(&meant, "task or data set", r->err);
            return;
        }
        claim->tasks[claim->n_tasks] = copy(r, meant.word);
        if (!good(r)) {
            return;
        }
        claim->n_tasks++;
    }
}

static void read_needs(struct reading *r, json_t *element, struct sl_plan_claim *claim) {
    static const char *const members[] = {"recipe", "least", NULL};
    json_t *needs = json_object_get(element, "needs");
    if (!needs) {
        return;
    }
    if (!json_is_object(needs)) {
        fail(r, "\"needs\" must be {\"recipe\": \"full\", \"least\": SCORE}");
    }
    check_members(r, needs, members);
    const char *recipe = get_text(r, needs, "recipe", true);
    if (recipe && strcmp(recipe, "full") != 0) {
        fail(r, "a claim can need something of \"full\" alone");
    }
    claim->needs_least = get_number(r, needs, "least");
    if (!(claim->needs_least > 0 && claim->needs_least <= 1)) {
        fail(r, "\"least\" must be a score above 0, of at most 1");
    }
}

static void read_claim(struct reading *r, json_t *element) {
    static const char *const members[] = {"paper", "text", "better", "worse", "by", "tasks", "needs", NULL};
    struct sl_eval_plan *plan = r->plan;
    struct sl_plan_claim *more = realloc(plan->claims, (plan->n_claims + 1) * sizeof *more);
    if (!more) {
        r->status = sl_fail(r->err, SL_ERR_EXHAUSTED, "no memory for a claim");
        return;
    }
    plan->claims = more;
    struct sl_plan_claim *claim = &more[plan->n_claims++]; // owned by the plan from here on, finished or not
    *claim = (struct sl_plan_claim){0};
    if (!json_is_object(element)) {
        fail(r, "a claim must be {\"paper\", \"text\", \"better\", \"worse\", ...}");
        return;
    }
    check_members(r, element, members);
    const char *paper = get_text(r, element, "paper", true), *text = get_text(r, element, "text", true);
    claim->paper = copy(r, paper);
    claim->text = copy(r, text);
    claim->better = get_recipe_name(r, element, "better");
    claim->worse = get_recipe_name(r, element, "worse");
    claim->by = get_number(r, element, "by");
    read_claim_tasks(r, element, claim);
    read_needs(r, element, claim);
}

// --- the file ----------------------------------------------------------------------------------------------------

static void read_root(struct reading *r) {
    static const char *const members[] = {"title",  "budgets", "recipes", "tasks",    "lengths",
                                          "depths", "samples", "seed",    "datasets", "max_prompt_tokens",
                                          "claims", NULL};
    struct sl_eval_plan *plan = r->plan;
    check_members(r, r->root, members);
    plan->title = copy(r, get_text(r, r->root, "title", true));
    plan->seed = (uint64_t)get_integer(r, r->root, "seed", 0, INT64_MAX, 1);
    plan->max_prompt_tokens = get_integer(r, r->root, "max_prompt_tokens", 1, SL_TASK_MAX_TOKENS, 0);
    get_list(r, r->root, "budgets"); // recipes read it; this checks its type
    each(r, "recipes", read_recipe);
    r->status = good(r) ? sl_eval_plan_put_full_first(plan, r->err) : r->status;
    each(r, "tasks", read_task);
    each(r, "datasets", read_dataset);
    if (plan->n_cells == 0) {
        fail(r, "there is nothing to ask: give \"tasks\" or \"datasets\"");
    }
    each(r, "claims", read_claim);
}

static enum sl_status load(const char *path, json_t **root_out, struct sl_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    char *text = malloc(MAX_PLAN_BYTES + 1);
    size_t n_bytes = text ? fread(text, 1, MAX_PLAN_BYTES + 1, file) : 0;
    int error = ferror(file) ? errno : 0;
    fclose(file);
    json_error_t cause = {0};
    enum sl_status status = SL_OK;
    if (!text) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %s", path);
    } else if (error) {
        status = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(error));
    } else if (n_bytes > MAX_PLAN_BYTES) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: a plan has at most %d MiB", path, MAX_PLAN_BYTES >> 20);
    } else {
        *root_out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &cause);
        if (!*root_out) {
            status = sl_fail(err, SL_ERR_INVALID, "%s:%d: %s", path, cause.line, cause.text);
        }
    }
    free(text);
    return status;
}

enum sl_status sl_eval_plan_read(const char *path, const char *data_dir, struct sl_eval_plan *plan_out,
                                 struct sl_error *err) {
    json_t *root = NULL;
    enum sl_status status = load(path, &root, err);
    if (status != SL_OK) {
        return status;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
    struct sl_eval_plan plan = {0};
    struct reading reading = {.data_dir = data_dir ? data_dir : folder, .plan = &plan, .err = err, .root = root};
    if (!folder) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a plan");
    } else if (!json_is_object(root)) {
        status = sl_fail(err, SL_ERR_INVALID, "a plan must be a JSON object: {...}");
    } else {
        read_root(&reading);
        status = reading.status;
    }
    if (status == SL_OK) {
        *plan_out = plan;
    } else {
        sl_error_prefix(err, path);
        sl_eval_plan_cleanup(&plan);
    }
    free(folder);
    json_decref(root);
    return status;
}
