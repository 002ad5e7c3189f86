// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: which tiers of the table of operations this processor can run, and which one a caller gets.
 *
 * Design: the tables are filled once per process, each from a copy of the previous one; afterwards they are only read.
 *         SLUICE_TIER in the environment replaces "auto", for tests and comparisons.
 *
 * To add a tier: a row in `tiers`, after the one that it is a copy of, its fill functions in the folders' fills.h, and a
 * row in `choices` for the processors on which it is the fastest.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/tiers.h"

#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/attention/integer/fills.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/retrieve/fills.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
// Returns true where the processor has AVX2, FMA and F16C. The builtin also checks that the operating system saves the
// wide registers. Some compilers' builtin does not know f16c.
static bool has_avx2(void) {
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512vnni(void) {
    const unsigned avx512_vnni = 1u << 11;
    unsigned eax, ebx, ecx, edx;
    return has_avx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & avx512_vnni) != 0;
}

// Processors with VNNI have permutations of bytes too, but for Cascade and Cooper Lake.
static void fill_attention(struct sl_ops *ops) {
    (__builtin_cpu_supports("avx512vbmi") ? sl_avx512vbmi_kv_fill : sl_avx512vnni_kv_fill)(ops);
}

// Returns true where the processor has AVX512-BF16 and VNNI: AMD's from Zen 4 and Intel's from Cooper Lake on.
static bool has_avx512bf16(void) {
    const unsigned avx512_bf16 = 1u << 5;
    unsigned eax, ebx, ecx, edx;
    return has_avx512vnni() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & avx512_bf16) != 0;
}

// Returns true where VDPBF16PS issues as often as f32 multiply-adds. Sapphire and Emerald Rapids issue it a quarter as
// often: half their rate.
static bool has_fast_avx512bf16(void) {
    return has_avx512bf16() && __builtin_cpu_is("amd");
}

// Asks the kernel for tile registers, 8 KiB of state that it must save. It grants them to a process that asks (Linux
// 5.16), and to all its threads. It refuses where a thread's alternate signal stack is too small for them, as under
// AddressSanitizer.
static bool has_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    unsigned eax, ebx, ecx, edx;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_bf16) != 0 &&
           (edx & amx_tile) != 0 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

enum { N_FILLS = 7 }; // of one tier, at most
static const struct {
    const char *name;
    bool (*runs_here)(void);
    void (*fills[N_FILLS])(struct sl_ops *ops); // entries that none of them fills stay as in the previous tier
} tiers[] = {
    {"reference",
     always,
     {sl_ref_dense_fill, sl_ref_pick_fill, sl_ref_kv_fill, sl_ref_stats_fill, sl_ref_evict_fill, sl_ref_retrieve_fill,
      sl_ref_scan_fill}},
#if defined(__x86_64__)
    {"avx2",
     has_avx2,
     {sl_vector_dense_fill, sl_avx2_kv_fill, sl_avx2_evict_fill, sl_avx2_retrieve_fill, sl_avx2_scan_fill}},
    {"avx512", has_avx512, {sl_avx512_dense_fill, sl_avx512_kv_fill, sl_avx512_evict_fill, sl_avx512_scan_fill}},
    {"avx512vnni", has_avx512vnni, {sl_avx512vnni_dense_fill, fill_attention}},
    {"avx512bf16", has_avx512bf16, {sl_avx512bf16_dense_fill, sl_avx512bf16_kv_fill}},
    {"amx2", has_amx, {sl_amx_dense_fill, sl_amx2_dense_fill, sl_amx2_kv_fill}},
    {"amx", has_amx, {sl_amx_dense_fill, sl_amx_kv_fill}},
#elif defined(__aarch64__)
    {"neon", always, {sl_vector_dense_fill}},
#endif
};
enum { N_TIERS = sizeof tiers / sizeof tiers[0] };

/*
 * The tier that "auto" takes on each processor: the fastest one whose precision engine/tensor/ops.h permits for the
 * model's weights. The first row that matches this processor counts. `sluice bench tiers` measures whether the choice is
 * right. The rows were measured on Sapphire Rapids with AMX, Zen 4, and Emerald Rapids without AMX.
 */
static const struct {
    bool (*is_this)(void);
    const char *usual; // bf16; codes, which tiers from avx512vnni on multiply alike but for prompts on AMX
    const char *wide;  // f16 and f32, of which amx would round one side of attention
} choices[] = {
#if defined(__x86_64__)
    {has_amx, "amx", "amx2"},
    {has_fast_avx512bf16, "avx512bf16", "avx512bf16"},
    {has_avx512vnni, "avx512vnni", "avx512vnni"}, // with bf16, multiply-adds of f32
    {has_avx512, "avx512", "avx512"},
    {has_avx2, "avx2", "avx2"},
#elif defined(__aarch64__)
    {always, "neon", "neon"},
#endif
    {always, "reference", "reference"},
};

static struct sl_ops tables[N_TIERS];
static const char *names[N_TIERS + 1];
static int n_tables, chosen; // the row of choices[]
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void) {
    for (int i = 0; i < N_TIERS; i++) {
        if (!tiers[i].runs_here()) {
            continue;
        }
        struct sl_ops *table = &tables[n_tables];
        if (n_tables > 0) {
            *table = tables[n_tables - 1];
        }
        table->name = tiers[i].name;
        for (int f = 0; f < N_FILLS && tiers[i].fills[f] != NULL; f++) {
            tiers[i].fills[f](table);
        }
        names[n_tables++] = tiers[i].name;
    }
    while (!choices[chosen].is_this()) { // the last row is for all
        chosen++;
    }
}

// Returns the tier that the user has named; NULL: none, or auto.
static const char *named(const char *tier) {
    if (tier == NULL || strcmp(tier, "auto") == 0) {
        tier = getenv("SLUICE_TIER");
        return tier == NULL || tier[0] == '\0' || strcmp(tier, "auto") == 0 ? NULL : tier;
    }
    return tier;
}

static enum sl_status select_or(const char *by_default, const char *tier, const struct sl_ops **ops_out,
                                struct sl_error *err) {
    char list[128] = "";
    size_t used = 0;
    tier = tier != NULL ? tier : by_default;
    for (int i = 0; i < n_tables; i++) {
        if (strcmp(tables[i].name, tier) == 0) {
            *ops_out = &tables[i];
            return SL_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", tables[i].name);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "no kernels of tier \"%s\" for this processor; it can run: %s", tier, list);
}

enum sl_status sl_ops_select_wide(const char *tier, const struct sl_ops **ops_out, struct sl_error *err) {
    pthread_once(&tables_once, fill_tables);
    return select_or(choices[chosen].wide, named(tier), ops_out, err);
}

enum sl_status sl_ops_select(const char *tier, const struct sl_ops **ops_out, struct sl_error *err) {
    pthread_once(&tables_once, fill_tables);
    return select_or(choices[chosen].usual, named(tier), ops_out, err);
}

const char *const *sl_ops_tiers(void) {
    pthread_once(&tables_once, fill_tables);
    return names;
}
