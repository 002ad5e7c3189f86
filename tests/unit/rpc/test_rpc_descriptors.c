// SPDX-License-Identifier: Apache-2.0
// Purpose: names are found in the descriptor set where they are defined, and damaged sets are refused or harmless.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "proto/descriptors.h"
#include "net/rpc/standard/rpc_descriptors.h"

static size_t file_named(const struct sl_rpc_files *files, const char *name) {
    return sl_rpc_files_named(files, (struct sl_rpc_span){(const uint8_t *)name, strlen(name)});
}

static void parse(struct sl_rpc_files *files) {
    assert_int_equal(sl_rpc_files_parse(sl_proto_descriptors, sl_proto_descriptors_bytes, files, NULL), SL_OK);
    assert_int_equal(files->n_files, 11);
}

static void test_files_resolve_symbols(void **state) {
    (void)state;
    const char *const cases[][2] = {
        {"sluice.v1.Inference", "sluice/v1/inference.proto"},
        {"sluice.v1.Inference.Generate", "sluice/v1/inference.proto"},
        {"sluice.v1.Job", "sluice/v1/inference.proto"},
        {"sluice.v1.Job.job_id", "sluice/v1/inference.proto"},
        {"sluice.v1.JobState", "sluice/v1/inference.proto"},
        {"sluice.v1.QUEUED", "sluice/v1/inference.proto"},
        {"sluice.v1.Finished.Reason", "sluice/v1/inference.proto"},
        {"sluice.v1.Finished.STOP_TOKEN", "sluice/v1/inference.proto"},
        {"sluice.v1.Decode.Run", "sluice/v1/worker.proto"},
        {"sluice.v1.Cluster", "sluice/v1/cluster.proto"},
        {"sluice.v1.Documents.Add", "sluice/v1/documents.proto"},
        {"grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"},
        {"grpc.reflection.v1alpha.ServerReflection", "grpc/reflection/v1alpha/reflection.proto"},
    };
    struct sl_rpc_files files;
    parse(&files);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t found = sl_rpc_files_defining(&files, cases[i][0]);
        assert_int_equal(found, file_named(&files, cases[i][1]));
        assert_true(found < files.n_files);
    }
    const char *const absent[] = {"",
                                  "sluice",
                                  "sluice.v1",
                                  "sluice.v1.",
                                  "sluice.v1.Jo",
                                  "Inference",
                                  "sluice.v1.Job.",
                                  "sluice.v1.Job.job_id.x",
                                  "sluice.v1.JobState.QUEUED"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        assert_int_equal(sl_rpc_files_defining(&files, absent[i]), files.n_files);
    }
}

static void test_files_closure_follows_imports(void **state) {
    (void)state;
    struct sl_rpc_files files;
    size_t indices[SL_RPC_MAX_FILES];
    parse(&files);
    const size_t worker = file_named(&files, "sluice/v1/worker.proto");
    assert_int_equal(sl_rpc_files_closure(&files, worker, indices), 2);
    assert_int_equal(indices[0], worker);
    assert_int_equal(indices[1], file_named(&files, "sluice/v1/inference.proto"));
}

static void test_files_survive_damage(void **state) {
    (void)state;
    struct sl_rpc_files files;
    assert_int_equal(sl_rpc_files_parse(NULL, 0, &files, NULL), SL_OK);
    assert_int_equal(files.n_files, 0);
    assert_int_equal(sl_rpc_files_parse(sl_proto_descriptors, sl_proto_descriptors_bytes - 1, &files, NULL),
                     SL_ERR_INVALID);
    srand(1);
    for (int i = 0; i < 300; i++) { // on an exact copy, so that the sanitizer sees every read beyond it
        const size_t bytes = i % 2 ? sl_proto_descriptors_bytes : (size_t)rand() % sl_proto_descriptors_bytes + 1;
        uint8_t *copy = malloc(bytes);
        assert_non_null(copy);
        memcpy(copy, sl_proto_descriptors, bytes);
        for (int k = 0; k < 4; k++) {
            copy[(size_t)rand() % bytes] = (uint8_t)rand();
        }
        if (sl_rpc_files_parse(copy, bytes, &files, NULL) == SL_OK) {
            size_t indices[SL_RPC_MAX_FILES];
            assert_true(sl_rpc_files_defining(&files, "sluice.v1.Finished.Reason.nothing") <= files.n_files);
            for (size_t f = 0; f < files.n_files; f++) {
                assert_true(sl_rpc_files_closure(&files, f, indices) <= files.n_files);
            }
        }
        free(copy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_resolve_symbols),
        cmocka_unit_test(test_files_closure_follows_imports),
        cmocka_unit_test(test_files_survive_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
