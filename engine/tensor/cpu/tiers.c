// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: which tiers of the table of operations this processor can run, and which one a caller gets.
 *
 * Design: the tables are filled once per process, slowest first, each from a copy of the previous one; afterwards they
 *         are only read. SLUICE_TIER in the environment replaces "auto", for tests and comparisons.
 *
 * To add a tier: a row in `tiers`, and its fill functions in the folders' fills.h. Slower rows come first.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/tiers.h"

#include "engine/tensor/cpu/attention/fills.h"
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
static bool never(void) {
    return false;
}

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

// Returns true where the processor has AVX512-BF16 and VNNI: AMD's from Zen 4 and Intel's from Cooper Lake on.
static bool has_avx512bf16(void) {
    const unsigned avx512_bf16 = 1u << 5;
    unsigned eax, ebx, ecx, edx;
    return has_avx512vnni() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & avx512_bf16) != 0;
}

// Returns false on Sapphire Rapids, which issues VDPBF16PS a quarter as often as f32 multiply-adds, or half their rate.
// The tile unit identifies it, whether or not the operating system permits its use.
static bool has_no_tiles(void) {
    const unsigned amx_tile = 1u << 24;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_tile) == 0;
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
    bool (*pays_here)(void);                    // returns true where it is faster than the tiers before it; "auto" asks
    void (*fills[N_FILLS])(struct sl_ops *ops); // entries that none of them fills stay as in the previous tier
} tiers[] = {
    {"reference",
     always,
     always,
     {sl_ref_dense_fill, sl_ref_pick_fill, sl_ref_kv_fill, sl_ref_stats_fill, sl_ref_evict_fill, sl_ref_retrieve_fill,
      sl_ref_scan_fill}},
#if defined(__x86_64__)
    {"avx2",
     has_avx2,
     always,
     {sl_vector_dense_fill, sl_avx2_kv_fill, sl_avx2_evict_fill, sl_avx2_retrieve_fill, sl_avx2_scan_fill}},
    {"avx512", has_avx512, always, {sl_avx512_dense_fill, sl_avx512_kv_fill, sl_avx512_scan_fill}},
    {"avx512vnni", has_avx512vnni, always, {sl_avx512vnni_dense_fill}},
    {"avx512bf16", has_avx512bf16, has_no_tiles, {sl_avx512bf16_dense_fill, sl_avx512bf16_kv_fill}},
    {"amx2", has_amx, never, {sl_amx_dense_fill, sl_amx2_dense_fill, sl_amx2_kv_fill}},
    {"amx", has_amx, always, {sl_amx_dense_fill, sl_amx_kv_fill}},
#elif defined(__aarch64__)
    {"neon", always, always, {sl_vector_dense_fill}},
#endif
};
enum { N_TIERS = sizeof tiers / sizeof tiers[0] };

static struct sl_ops tables[N_TIERS];
static const char *names[N_TIERS + 1];
static int n_tables, n_auto; // "auto" is table n_auto - 1
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
        if (tiers[i].pays_here()) {
            n_auto = n_tables;
        }
    }
}

// Returns the tier's name; NULL for auto.
static const char *named(const char *tier) {
    if (tier == NULL || strcmp(tier, "auto") == 0) {
        tier = getenv("SLUICE_TIER");
        return tier == NULL || tier[0] == '\0' || strcmp(tier, "auto") == 0 ? NULL : tier;
    }
    return tier;
}

enum sl_status sl_ops_select_closer(const char *tier, const struct sl_ops **ops_out, struct sl_error *err) {
    pthread_once(&tables_once, fill_tables);
    bool rounds = named(tier) == NULL && strcmp(tables[n_auto - 1].name, "amx") == 0;
    return sl_ops_select(rounds ? "amx2" : tier, ops_out, err);
}

enum sl_status sl_ops_select(const char *tier, const struct sl_ops **ops_out, struct sl_error *err) {
    pthread_once(&tables_once, fill_tables);
    tier = named(tier);
    if (tier == NULL) {
        *ops_out = &tables[n_auto - 1];
        return SL_OK;
    }
    char list[128] = "";
    size_t used = 0;
    for (int i = 0; i < n_tables; i++) {
        if (strcmp(tables[i].name, tier) == 0) {
            *ops_out = &tables[i];
            return SL_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", tables[i].name);
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "no kernels of tier \"%s\" for this processor; it can run: %s", tier, list);
}

const char *const *sl_ops_tiers(void) {
    pthread_once(&tables_once, fill_tables);
    return names;
}
