// SPDX-License-Identifier: Apache-2.0
// Purpose: the named values of every axis: what the reader accepts, the writer writes and messages list.
#include "compress/recipe/internal.h"

// To add a value: a row in its axis' table, once it works.

const struct sl_axis_value sl_names_score[] = {
#define X(NAME, word, ...) {#word, SL_NO_ARGUMENT, SL_SCORE_##NAME},
    SL_SCORE_MAP(X)
#undef X
        {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_value[] = {
    {"off", SL_NO_ARGUMENT, SL_VALUE_OFF},
    {"caote", SL_NO_ARGUMENT, SL_VALUE_CAOTE},
    {"fastcaote", SL_NO_ARGUMENT, SL_VALUE_FASTCAOTE},
    {"caote-heads", SL_NO_ARGUMENT, SL_VALUE_CAOTE_HEADS},
    {"fastcaote-heads", SL_NO_ARGUMENT, SL_VALUE_FASTCAOTE_HEADS},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_scope[] = {
    {"sinks", SL_ARGUMENT, SL_SCOPE_SINKS}, {"recent", SL_ARGUMENT, SL_SCOPE_RECENT},
    {"std", SL_ARGUMENT, SL_SCOPE_STD},     {"stabilizers", SL_ARGUMENT, SL_SCOPE_STABILIZERS},
    {"tail", SL_ARGUMENT, SL_SCOPE_TAIL},   {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_pool[] = {
    {"none", SL_NO_ARGUMENT, SL_POOL_NONE},
    {"max", SL_ARGUMENT, SL_POOL_MAX},
    {"avg", SL_ARGUMENT, SL_POOL_AVG},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_layers[] = {
    {"uniform", SL_NO_ARGUMENT, SL_LAYERS_UNIFORM}, {"d2o", SL_NO_ARGUMENT, SL_LAYERS_D2O},
    {"d2o-raw", SL_NO_ARGUMENT, SL_LAYERS_D2O_RAW}, {"d2o-minmax", SL_NO_ARGUMENT, SL_LAYERS_D2O_MINMAX},
    {"pyramid", SL_NO_ARGUMENT, SL_LAYERS_PYRAMID}, {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_heads[] = {
    {"uniform", SL_NO_ARGUMENT, SL_HEADS_UNIFORM},
    {"adaptive", SL_NO_ARGUMENT, SL_HEADS_ADAPTIVE},
    {"layer", SL_NO_ARGUMENT, SL_HEADS_LAYER},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_when[] = {
    {"chunk", SL_NO_ARGUMENT, SL_WHEN_CHUNK},
    {"end", SL_NO_ARGUMENT, SL_WHEN_END},
    {"step", SL_NO_ARGUMENT, SL_WHEN_STEP},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_evicted[] = {
    {"drop", SL_NO_ARGUMENT, SL_EVICTED_DROP},
    {"merge", SL_MAYBE_ARGUMENT, SL_EVICTED_MERGE},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_place[] = {
    {"resident", SL_NO_ARGUMENT, 0},
    {"offload", SL_ARGUMENT, 1},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_retrieve[] = {
    {"near", SL_NO_ARGUMENT, SL_RETRIEVE_NEAR},
    {"pull", SL_NO_ARGUMENT, SL_RETRIEVE_PULL},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_scan[] = {
    {"stored", SL_NO_ARGUMENT, SL_SCAN_STORED},
    {"int8", SL_NO_ARGUMENT, SL_SCAN_INT8},
    {"int1", SL_NO_ARGUMENT, SL_SCAN_INT1},
    {NULL, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_positions[] = {
    {"original", SL_NO_ARGUMENT, SL_POSITION_ORIGINAL},
    {"slot", SL_NO_ARGUMENT, SL_POSITION_SLOT},
    {NULL, SL_NO_ARGUMENT, 0},
};

const char *sl_axis_value_name(const struct sl_axis_value *values, int number) {
    while (values->name != NULL && values->number != number) {
        values++;
    }
    return values->name != NULL ? values->name : "?";
}
