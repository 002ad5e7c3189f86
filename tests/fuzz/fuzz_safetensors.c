// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the tensors of a model folder: whatever the files are, opening gives an error with a text
 *          or tensors that lie side by side inside the files, each of the bytes that its shape needs.
 *
 * Design: the first byte of the input says what the rest is:
 *      f   the bytes of model.safetensors
 *      t   model.safetensors as text: the size of the data and the header (fuzz_folder.h), so that the fuzzer need not
 *          keep a length field right
 *      x   model.safetensors.index.json, a zero byte, and shards "0" to "3" as for t, separated by zero bytes
 */
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz_folder.h"

#define FILE_NAME  "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define N_SHARDS   4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const shard_names[N_SHARDS] = {"0", "1", "2", "3"};

static int compare_data(const void *a, const void *b) {
    const struct sl_tensor *x = a, *y = b;
    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void check_shape(const struct sl_tensor *tensor) {
    require(tensor->n_dims >= 0 && tensor->n_dims <= SL_TENSOR_MAX_DIMS);
    size_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        require(tensor->shape[i] >= 0 && !__builtin_mul_overflow(n, (size_t)tensor->shape[i], &n));
    }
    require(n == 0 ? tensor->bytes == 0 : tensor->bytes % n == 0 && tensor->bytes / n >= 1 && tensor->bytes / n <= 8);
}

// Every byte is read; where the data are ours they count up from whatever the first one is.
static void check_data(const struct sl_tensor *tensor, bool is_ours) {
    const volatile unsigned char *bytes = tensor->data;
    size_t start = tensor->bytes > 0 ? bytes[0] - 1u : 0;
    for (size_t i = 0; i < tensor->bytes; i++) {
        unsigned char byte = bytes[i];
        require(!is_ours || byte == fuzz_data_byte(start + i));
    }
}

static void check_find(const struct sl_safetensors *tensors, const struct sl_tensor *tensor) {
    const struct sl_tensor *found = NULL;
    struct sl_error err = {0};
    int64_t rows = tensor->shape[0], columns = tensor->shape[1];
    if (tensor->n_dims == 1 || tensor->n_dims == 2) {
        enum sl_status status = sl_safetensors_find(tensors, tensor->name, tensor->n_dims, rows, columns, &found, &err);
        require(status == SL_OK ? found == tensor : status == SL_ERR_UNSUPPORTED && err.text[0] != '\0');
    }
    require(sl_safetensors_find(tensors, tensor->name, 2, rows + 1, columns, &found, &err) == SL_ERR_INVALID);
}

static void check_open(size_t data_bytes, bool is_one_file, bool is_ours) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_safetensors_open(fuzz_folder(), &tensors, &err);
    require((status == SL_OK) == (tensors != NULL) && (status == SL_OK || err.text[0] != '\0'));
    if (tensors == NULL) {
        return;
    }
    size_t n, sum = 0;
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n);
    struct sl_tensor *sorted = calloc(n + 1, sizeof *sorted);
    require(sorted != NULL);
    sl_safetensors_will_read(tensors);
    for (size_t i = 0; i < n; i++) {
        require(i == 0 || strcmp(list[i - 1].name, list[i].name) < 0);
        check_shape(&list[i]);
        check_data(&list[i], is_ours);
        check_find(tensors, &list[i]);
        sl_tensor_drop_pages(&list[i]);
        check_data(&list[i], is_ours);
        sorted[i] = list[i];
        sum += list[i].bytes;
    }
    qsort(sorted, n, sizeof *sorted, compare_data);
    for (size_t i = 1; i < n; i++) {
        require(sorted[i - 1].data + sorted[i - 1].bytes <= sorted[i].data);
    }
    require(is_one_file ? sum == data_bytes : sum <= data_bytes); // an index need not name every shard
    free(sorted);
    sl_safetensors_close(&tensors);
}

static void check_file(const uint8_t *data, size_t size) {
    uint64_t header_bytes = 0;
    memcpy(&header_bytes, data, size < 8 ? size : 8);
    fuzz_folder_write(FILE_NAME, data, size);
    check_open(size - 8 - (size_t)le64toh(header_bytes), true, false);
}

static void check_index(const char *rest, size_t rest_bytes) {
    const char *part;
    size_t part_bytes, data_bytes = 0;
    int n_shards = 0;
    fuzz_folder_remove(FILE_NAME);
    require(fuzz_next_part(&rest, &rest_bytes, &part, &part_bytes));
    fuzz_folder_write(INDEX_NAME, part, part_bytes);
    while (n_shards < N_SHARDS && fuzz_next_part(&rest, &rest_bytes, &part, &part_bytes)) {
        data_bytes += fuzz_folder_write_tensors(shard_names[n_shards++], part, part_bytes);
    }
    check_open(data_bytes, false, true);
    for (int i = 0; i < n_shards; i++) {
        fuzz_folder_remove(shard_names[i]);
    }
    fuzz_folder_remove(INDEX_NAME);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    if (data[0] == 'f') {
        check_file(data + 1, size - 1);
    } else if (data[0] == 't') {
        check_open(fuzz_folder_write_tensors(FILE_NAME, (const char *)data + 1, size - 1), true, true);
    } else if (data[0] == 'x') {
        check_index((const char *)data + 1, size - 1);
    }
    fuzz_folder_remove(FILE_NAME);
    return 0;
}
