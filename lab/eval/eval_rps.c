// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice eval rps`: rock-paper-scissors over one long conversation (lab/eval/rps.h), after Locret's appendix H:
 *          wins, ties and losses against an opponent who prefers one move, for each preference.
 *
 * Design: a game is a conversation: every turn reads what the opponent played and answers, on the compressed cache. Its
 *         counts are one answer among the results, so that a run that was stopped goes on at its next game.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/message_json.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tool.h"
#include "lab/eval/eval.h"
#include "lab/eval/rps.h"
#include "lab/eval/run/eval_options.h"
#include "lab/eval/run/eval_results.h"
#include "lab/eval/run/eval_run.h"
#include "runner/local.h"

struct rps_config {
    struct sl_tool_config tool;
    struct sl_eval_options eval;
    int64_t turns;
};

static const struct sl_option options[] = {
    {"model", 'm', SL_OPTION_STRING, NULL, "DIR", "model folder", offsetof(struct rps_config, eval.model), 0, 0},
    {"turns", 0, SL_OPTION_INT, "500", "N", "of a game", offsetof(struct rps_config, turns), 1, 1 << 20},
    {"samples", 'n', SL_OPTION_INT, "1", "N", "games against each preference",
     offsetof(struct rps_config, eval.samples), 1, 1 << 20},
    {"seed", 0, SL_OPTION_INT, "1", "N", "of the opponent", offsetof(struct rps_config, eval.seed), 0, 1LL << 48},
    SL_EVAL_ASK_OPTIONS(rps_config),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice eval rps",
    .usage = "--model DIR [--recipe RECIPE] [options]",
    .summary =
        "Play rock-paper-scissors against an opponent who prefers one move, in one conversation on the compressed\n"
        "cache. Who always counters that move wins 60% of the turns, who plays at random a third.",
    .epilog = "Ctrl-C ends it with the games that are over; with --out the same command goes on from "
              "there.\n" SL_EXIT_CODES_HELP,
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

struct rps {
    const struct rps_config *config;
    struct sl_eval_plan plan; // of recipes alone
    const char **canonical;
    struct sl_answerer *answerer;
    struct sl_eval_results *results;
    struct sl_signals signals;
    int width; // of the terminal behind standard error; 0: it is none
};

// --- a game -----------------------------------------------------------------------------------------------------

static bool stopped(void *arg) {
    struct rps *rps = arg;
    return sl_signals_received(&rps->signals) > 0;
}

static enum sl_status on_token(void *arg, const struct sl_written *written) {
    (void)written;
    return stopped(arg) ? SL_ERR_CANCELLED : SL_OK;
}

static enum sl_status play_turn(struct rps *rps, struct sl_conversation *conversation, enum sl_rps_move opponent,
                                bool first, struct sl_local_result *result, struct sl_error *err) {
    static const char *const stops[] = {"\n"};
    const char *text = sl_rps_turn(opponent);
    int32_t *ids;
    size_t n_ids;
    enum sl_status status =
        sl_tokenizer_encode(sl_answerer_tokenizer(rps->answerer), text, strlen(text), first, &ids, &n_ids, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_local_request request = {.prompt = ids,
                                       .n_prompt = (int64_t)n_ids,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1}, // temperature 0: greedy
                                       .max_new_tokens = SL_RPS_ANSWER_TOKENS,
                                       .stops = stops,
                                       .n_stops = 1,
                                       .token_fn = on_token,
                                       .arg = rps};
    status = sl_conversation_turn(conversation, &request, result, err);
    free(ids);
    return status;
}

static void show_turn(const struct rps *rps, const char *name, int64_t turn) {
    if (rps->width > 0 && turn % 10 == 0) {
        struct sl_progress progress = {.phase = name, .done = turn, .total = rps->config->turns, .unit = "turns"};
        sl_progress_draw(&progress, rps->width, stderr);
    }
}

// What a game leaves in the results beside its counts: the last turn's bytes.
static void note_bytes(const struct sl_local_result *result, struct sl_eval_answer *answer) {
    answer->n_prompt = result->n_tokens;
    answer->shipped_bytes = (int64_t)result->capsule_bytes;
    answer->full_bytes = (int64_t)result->full_bytes;
    answer->resident_bytes = (int64_t)result->decode_resident_bytes;
    answer->slots_per_head = result->slots_per_head;
}

static enum sl_status play_turns(struct rps *rps, struct sl_conversation *conversation, const char *name,
                                 const enum sl_rps_move *moves, struct sl_rps_score *score,
                                 struct sl_eval_answer *answer, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t turn = 0; status == SL_OK && turn < rps->config->turns; turn++) {
        struct sl_local_result result;
        show_turn(rps, name, turn);
        status = play_turn(rps, conversation, moves[turn], turn == 0, &result, err);
        if (status == SL_OK) {
            sl_rps_judge(result.text, moves[turn + 1], score);
            note_bytes(&result, answer);
            free(result.text);
        }
    }
    return status;
}

static enum sl_status play(struct rps *rps, size_t recipe, enum sl_rps_move preference, int64_t game,
                           struct sl_rps_score *score, struct sl_eval_answer *answer, struct sl_error *err) {
    size_t n_moves = (size_t)rps->config->turns + 1;
    enum sl_rps_move *moves = malloc(n_moves * sizeof *moves);
    if (!moves) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu moves", n_moves);
    }
    sl_rps_moves((uint64_t)rps->config->eval.seed + (uint64_t)game, preference, n_moves, moves);
    char name[160];
    snprintf(name, sizeof name, "%.80s %.20s, %s", rps->plan.recipes[recipe].name, rps->plan.recipes[recipe].budget,
             sl_rps_move_name(preference));
    struct sl_conversation *conversation;
    enum sl_status status =
        sl_conversation_open(sl_answerer_local(rps->answerer), rps->plan.recipes[recipe].recipe, 0, &conversation, err);
    if (status == SL_OK) {
        status = play_turns(rps, conversation, name, moves, score, answer, err);
        sl_conversation_close(&conversation);
    }
    free(moves);
    return status;
}

// --- all games --------------------------------------------------------------------------------------------------

static struct sl_eval_key key_of(const struct rps *rps, size_t recipe, enum sl_rps_move preference, int64_t game) {
    static const char *const cells[SL_RPS_N_MOVES] = {"rps-rock", "rps-paper", "rps-scissors"};
    return (struct sl_eval_key){.recipe = rps->canonical[recipe],
                                .cell = cells[preference],
                                .n_tokens = rps->config->turns,
                                .depth = -1,
                                .index = game};
}

static bool is_refusal(enum sl_status status) {
    return status == SL_ERR_INVALID || status == SL_ERR_PRECONDITION || status == SL_ERR_UNSUPPORTED;
}

static enum sl_status run_game(struct rps *rps, size_t recipe, enum sl_rps_move preference, int64_t game,
                               struct sl_error *err) {
    const struct sl_plan_recipe *r = &rps->plan.recipes[recipe];
    struct sl_eval_key key = key_of(rps, recipe, preference, game);
    struct sl_eval_answer answer;
    if (sl_eval_results_find(rps->results, &key, &answer) && !answer.refused) {
        return SL_OK;
    }
    struct sl_rps_score score = {0};
    struct sl_error why = {0};
    answer = (struct sl_eval_answer){.name = r->name, .budget = r->budget};
    enum sl_status status = play(rps, recipe, preference, game, &score, &answer, &why);
    if (status != SL_OK && !is_refusal(status)) {
        return sl_fail(err, status, "%.100s: %s", r->recipe, why.text[0] ? why.text : sl_status_text(status));
    }
    char text[128];
    snprintf(text, sizeof text, "%zu wins, %zu ties, %zu losses, %zu of them unread", score.n_win, score.n_tie,
             score.n_lose, score.n_unread);
    answer.text = text;
    answer.score = (double)score.n_win / (double)rps->config->turns;
    answer.refused = status == SL_OK ? NULL : why.text;
    return sl_eval_results_add(rps->results, &key, &answer, err);
}

static enum sl_status run_games(struct rps *rps, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t game = 0; status == SL_OK && game < rps->config->eval.samples; game++) {
        for (int preference = 0; status == SL_OK && preference < SL_RPS_N_MOVES; preference++) {
            for (size_t recipe = 0; status == SL_OK && recipe < rps->plan.n_recipes; recipe++) {
                status = run_game(rps, recipe, (enum sl_rps_move)preference, game, err);
            }
        }
    }
    if (rps->width > 0) {
        sl_progress_clear(stderr);
    }
    return status;
}

// --- the table --------------------------------------------------------------------------------------------------

// Of all games of a recipe against one preference. *refused_out: why there are none; NULL.
static struct sl_rps_score sum_games(const struct rps *rps, size_t recipe, enum sl_rps_move preference,
                                     const char **refused_out) {
    struct sl_rps_score sum = {0}, one;
    for (int64_t game = 0; game < rps->config->eval.samples; game++) {
        struct sl_eval_key key = key_of(rps, recipe, preference, game);
        struct sl_eval_answer answer;
        if (!sl_eval_results_find(rps->results, &key, &answer)) {
            continue;
        }
        if (answer.refused) {
            *refused_out = answer.refused;
        } else if (sscanf(answer.text, "%zu wins, %zu ties, %zu losses, %zu of", &one.n_win, &one.n_tie, &one.n_lose,
                          &one.n_unread) == 4) {
            sum.n_win += one.n_win;
            sum.n_tie += one.n_tie;
            sum.n_lose += one.n_lose;
            sum.n_unread += one.n_unread;
        }
    }
    return sum;
}

static void add_shares(struct sl_table *table, const struct sl_rps_score *score) {
    double n = (double)(score->n_win + score->n_tie + score->n_lose);
    if (n > 0) {
        sl_table_add(table, "%.1f / %.1f / %.1f", 100 * (double)score->n_win / n, 100 * (double)score->n_tie / n,
                     100 * (double)score->n_lose / n);
    } else {
        sl_table_add(table, "-");
    }
}

static void print_refused(const struct rps *rps) {
    for (size_t i = 0; i < rps->plan.n_recipes; i++) {
        const char *refused = NULL;
        sum_games(rps, i, SL_RPS_ROCK, &refused);
        if (refused) {
            printf("n/a: %s %s: %s\n", rps->plan.recipes[i].name, rps->plan.recipes[i].budget, refused);
        }
    }
}

static void print_table(const struct rps *rps) {
    static const struct sl_column columns[] = {{"RECIPE", false},  {"BUDGET", true},  {"ROCK", true},  {"PAPER", true},
                                               {"SCISSORS", true}, {"AVERAGE", true}, {"UNREAD", true}};
    struct sl_table table;
    sl_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < rps->plan.n_recipes; i++) {
        struct sl_rps_score all = {0};
        sl_table_add(&table, "%s", rps->plan.recipes[i].name);
        sl_table_add(&table, "%s", rps->plan.recipes[i].budget);
        for (int preference = 0; preference < SL_RPS_N_MOVES; preference++) {
            const char *refused = NULL;
            struct sl_rps_score score = sum_games(rps, i, (enum sl_rps_move)preference, &refused);
            add_shares(&table, &score);
            all.n_win += score.n_win;
            all.n_tie += score.n_tie;
            all.n_lose += score.n_lose;
            all.n_unread += score.n_unread;
        }
        add_shares(&table, &all);
        sl_table_add(&table, "%zu", all.n_unread);
    }
    printf("%s, weights %s; seed %" PRId64 "; win / tie / lose in %% of %" PRId64
           " turns, by the opponent's preference\n\n",
           rps->config->eval.model, rps->config->eval.weights, rps->config->eval.seed, rps->config->turns);
    sl_table_print(&table, stdout);
    sl_table_cleanup(&table);
    print_refused(rps);
}

static void print_json(const struct rps *rps) {
    for (size_t i = 0; i < rps->plan.n_recipes; i++) {
        for (int preference = 0; preference < SL_RPS_N_MOVES; preference++) {
            const char *refused = NULL;
            struct sl_rps_score score = sum_games(rps, i, (enum sl_rps_move)preference, &refused);
            json_t *line = json_pack(
                "{s:o, s:o, s:s, s:I, s:I, s:I, s:I}", "name", sl_text_json(rps->plan.recipes[i].name), "budget",
                sl_text_json(rps->plan.recipes[i].budget), "preference", sl_rps_move_name((enum sl_rps_move)preference),
                "win", (json_int_t)score.n_win, "tie", (json_int_t)score.n_tie, "lose", (json_int_t)score.n_lose,
                "unread", (json_int_t)score.n_unread);
            if (line && refused) {
                json_object_set_new(line, "refused", sl_text_json(refused));
            }
            json_dumpf(line, stdout, 0);
            putchar('\n');
            json_decref(line);
        }
    }
}

// --- the command ------------------------------------------------------------------------------------------------

static enum sl_status open_all(struct rps *rps, struct sl_error *err) {
    const struct sl_eval_options *o = &rps->config->eval;
    enum sl_weight_format weights;
    enum sl_status status = sl_weight_format_parse(o->weights, &weights, err);
    status = status == SL_OK ? sl_eval_options_recipes(o, &rps->plan, err) : status;
    status = status == SL_OK ? sl_eval_canonical(&rps->plan, &rps->canonical, err) : status;
    if (status != SL_OK) {
        return status;
    }
    struct sl_answerer_config config = {
        .model_dir = o->model, .weights = weights, .threads = (int)o->threads, .stopped = stopped, .arg = rps};
    status = sl_answerer_open(&config, &rps->answerer, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_eval_run run = {.model = sl_answerer_fingerprint(rps->answerer),
                              .weights = o->weights,
                              .tokenizer = sl_tokenizer_fingerprint(sl_answerer_tokenizer(rps->answerer)),
                              .seed = (uint64_t)o->seed};
    return sl_eval_results_open(o->out, &run, &rps->results, err);
}

static enum sl_status evaluate(const struct rps_config *config, struct sl_error *err) {
    struct rps rps = {.config = config, .width = sl_terminal_width(STDERR_FILENO)};
    enum sl_status status =
        config->eval.model ? sl_signals_init(&rps.signals, err) : sl_fail(err, SL_ERR_INVALID, "--model DIR is needed");
    if (status != SL_OK) {
        return status;
    }
    status = open_all(&rps, err);
    if (status == SL_OK) {
        status = run_games(&rps, err);
        if (status == SL_OK || status == SL_ERR_CANCELLED) {
            (config->tool.json ? print_json : print_table)(&rps);
        }
    }
    sl_eval_results_close(&rps.results);
    sl_answerer_close(&rps.answerer);
    free(rps.canonical);
    sl_eval_plan_cleanup(&rps.plan);
    sl_signals_cleanup(&rps.signals);
    return status;
}

int sl_command_eval_rps(int argc, char **argv) {
    struct rps_config config = {0};
    struct sl_error err = {0};
    int first, code;
    if (!sl_tool_parse(&program, argc, argv, &config, 0, 0, &first, &code)) {
        return code;
    }
    return evaluate(&config, &err) == SL_OK ? SL_EXIT_OK : sl_tool_complain("eval rps", &err);
}
