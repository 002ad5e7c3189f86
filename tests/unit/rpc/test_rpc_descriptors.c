// SPDX-License-Identifier: Apache-2.0
// Purpose: the generated table of names knows where each is defined, and what a file needs.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "proto/descriptors.h"

// The name of the file that defines a symbol, which must be one alone; NULL: none does.
static const char *file_defining(const char *symbol) {
    const char *found = NULL;
    for (size_t i = 0; i < sl_proto_n_symbols; i++) {
        if (strcmp(sl_proto_symbols[i].name, symbol) == 0) {
            assert_null(found);
            found = sl_proto_files[sl_proto_symbols[i].file].name;
        }
    }
    return found;
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
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *found = file_defining(cases[i][0]);
        assert_non_null(found);
        assert_string_equal(found, cases[i][1]);
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
        assert_null(file_defining(absent[i]));
    }
}

static void test_files_need_what_they_import(void **state) {
    (void)state;
    size_t n_found = 0;
    assert_int_equal(sl_proto_n_files, 11);
    for (size_t i = 0; i < sl_proto_n_files; i++) {
        const struct sl_proto_file *file = &sl_proto_files[i];
        assert_true(file->n_needs > 0 && file->n_bytes > strlen(file->name));
        assert_int_equal(file->needs[0], i);
        assert_memory_equal(file->bytes + 2, file->name, strlen(file->name)); // field 1 of a FileDescriptorProto
        if (strcmp(file->name, "sluice/v1/worker.proto") == 0) {
            assert_int_equal(file->n_needs, 2);
            assert_string_equal(sl_proto_files[file->needs[1]].name, "sluice/v1/inference.proto");
            n_found++;
        }
    }
    assert_int_equal(n_found, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_resolve_symbols),
        cmocka_unit_test(test_files_need_what_they_import),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
