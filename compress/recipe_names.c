// SPDX-License-Identifier: Apache-2.0
// Purpose: the named values of every axis: what the reader accepts, the writer writes and messages list.
#include "compress/recipe_internal.h"

// To add a value: a row in its axis' table; built = true once it works.

const struct sl_axis_value sl_names_score[] = {
    {"none", true, SL_NO_ARGUMENT, SL_SCORE_NONE},       {"random", true, SL_NO_ARGUMENT, SL_SCORE_RANDOM},
    {"recency", true, SL_NO_ARGUMENT, SL_SCORE_RECENCY}, {"aas", true, SL_NO_ARGUMENT, SL_SCORE_AAS},
    {"aqas", true, SL_NO_ARGUMENT, SL_SCORE_AQAS},       {"ltas", true, SL_NO_ARGUMENT, SL_SCORE_LTAS},
    {"mas", true, SL_NO_ARGUMENT, SL_SCORE_MAS},         {"snapkv", true, SL_NO_ARGUMENT, SL_SCORE_SNAPKV},
    {"cis", true, SL_NO_ARGUMENT, SL_SCORE_CIS},         {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_value[] = {
    {"off", true, SL_NO_ARGUMENT, SL_VALUE_OFF},
    {"caote", true, SL_NO_ARGUMENT, SL_VALUE_CAOTE},
    {"fastcaote", true, SL_NO_ARGUMENT, SL_VALUE_FASTCAOTE},
    {"caote-heads", true, SL_NO_ARGUMENT, SL_VALUE_CAOTE_HEADS},
    {"fastcaote-heads", true, SL_NO_ARGUMENT, SL_VALUE_FASTCAOTE_HEADS},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_scope[] = {
    {"sinks", true, SL_ARGUMENT, SL_SCOPE_SINKS}, {"recent", true, SL_ARGUMENT, SL_SCOPE_RECENT},
    {"std", true, SL_ARGUMENT, SL_SCOPE_STD},     {"stabilizers", true, SL_ARGUMENT, SL_SCOPE_STABILIZERS},
    {"tail", true, SL_ARGUMENT, SL_SCOPE_TAIL},   {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_pool[] = {
    {"none", true, SL_NO_ARGUMENT, SL_POOL_NONE},
    {"max", true, SL_ARGUMENT, SL_POOL_MAX},
    {"avg", true, SL_ARGUMENT, SL_POOL_AVG},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_layers[] = {
    {"uniform", true, SL_NO_ARGUMENT, SL_LAYERS_UNIFORM}, {"d2o", true, SL_NO_ARGUMENT, SL_LAYERS_D2O},
    {"d2o-raw", true, SL_NO_ARGUMENT, SL_LAYERS_D2O_RAW}, {"d2o-minmax", true, SL_NO_ARGUMENT, SL_LAYERS_D2O_MINMAX},
    {"pyramid", true, SL_NO_ARGUMENT, SL_LAYERS_PYRAMID}, {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_heads[] = {
    {"uniform", true, SL_NO_ARGUMENT, SL_HEADS_UNIFORM},
    {"adaptive", true, SL_NO_ARGUMENT, SL_HEADS_ADAPTIVE},
    {"layer", true, SL_NO_ARGUMENT, SL_HEADS_LAYER},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_when[] = {
    {"chunk", true, SL_NO_ARGUMENT, SL_WHEN_CHUNK},
    {"end", true, SL_NO_ARGUMENT, SL_WHEN_END},
    {"step", true, SL_NO_ARGUMENT, SL_WHEN_STEP},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_evicted[] = {
    {"drop", true, SL_NO_ARGUMENT, SL_EVICTED_DROP},
    {"merge", true, SL_MAYBE_ARGUMENT, SL_EVICTED_MERGE},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_place[] = {
    {"resident", true, SL_NO_ARGUMENT, 0},
    {"offload", true, SL_ARGUMENT, 1},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_retrieve[] = {
    {"near", true, SL_NO_ARGUMENT, SL_RETRIEVE_NEAR},
    {"pull", true, SL_NO_ARGUMENT, SL_RETRIEVE_PULL},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_scan[] = {
    {"stored", true, SL_NO_ARGUMENT, SL_SCAN_STORED},
    {"int8", true, SL_NO_ARGUMENT, SL_SCAN_INT8},
    {"int1", true, SL_NO_ARGUMENT, SL_SCAN_INT1},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const struct sl_axis_value sl_names_positions[] = {
    {"original", true, SL_NO_ARGUMENT, SL_POSITION_ORIGINAL},
    {"slot", true, SL_NO_ARGUMENT, SL_POSITION_SLOT},
    {NULL, false, SL_NO_ARGUMENT, 0},
};

const char *sl_axis_value_name(const struct sl_axis_value *values, int number) {
    while (values->name != NULL && values->number != number) {
        values++;
    }
    return values->name != NULL ? values->name : "?";
}
