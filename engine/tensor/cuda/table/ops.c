// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of a GPU, filled folder by folder; and the entries that read pages for tests, which copy them to
//         the host.
#include "engine/tensor/cuda/table/ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

// A process has one driver, so one table: the entries for inspection have no stream to find it by.
static struct {
    struct sl_ops ops;
    const struct gpu_driver *driver;
    const struct sl_ops *host;
} table;

// --- for tests and inspection ----------------------------------------------------------------------------------------

static size_t page_bytes(const struct sl_kv *kv, uint32_t page) {
    return page < kv->n_packed ? kv->packed->bytes : kv->work->bytes;
}

static void free_pages(void **pages, uint32_t n) {
    for (uint32_t p = 0; pages != NULL && p < n; p++) {
        table.driver->free_shared(pages[p]);
    }
    free(pages);
}

// Copies the pages of a head to host memory; ends the process where there is no memory for them.
static void **bring_pages(const struct sl_kv *kv) {
    uint32_t n = sl_pages_for(kv->n_slots);
    void **pages = calloc((size_t)n + 1, sizeof *pages);
    struct gpu_queue *queue = table.driver->queue_open();
    struct gpu_event *event = table.driver->event_open();
    bool there = pages != NULL && queue != NULL && event != NULL;
    for (uint32_t p = 0; there && p < n; p++) {
        pages[p] = table.driver->alloc_shared(page_bytes(kv, p));
        there = pages[p] != NULL;
        if (there) {
            table.driver->copy(queue, pages[p], kv->pages[p], page_bytes(kv, p));
        }
    }
    if (!there) {
        abort();
    }
    table.driver->event_record(event, queue);
    if (!table.driver->event_wait_until(event, sl_deadline_in_ms(SL_DEVICE_STILL_MS)) ||
        table.driver->event_wait(event, NULL) != SL_OK) {
        sl_log_error("cuda", "pages of the %s device did not come to the host within %d s: this process ends",
                     table.driver->name, SL_DEVICE_STILL_MS / 1000);
        abort();
    }
    table.driver->event_close(&event);
    table.driver->queue_close(&queue);
    return pages;
}

static void read_rows(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out) {
    void **pages = bring_pages(kv);
    struct sl_kv here = *kv;
    here.pages = pages;
    table.host->read_rows(&here, begin, end, k_out, v_out);
    free_pages(pages, sl_pages_for(kv->n_slots));
}

static void read_positions(const struct sl_kv *kv, int64_t *positions_out) {
    void **pages = bring_pages(kv);
    struct sl_kv here = *kv;
    here.pages = pages;
    table.host->read_positions(&here, positions_out);
    free_pages(pages, sl_pages_for(kv->n_slots));
}

// --- the table -------------------------------------------------------------------------------------------------------

const struct sl_ops *sl_gpu_ops(const struct gpu_driver *driver, const struct sl_ops *host) {
    table.driver = driver;
    table.host = host;
    table.ops = (struct sl_ops){.name = driver->name,
                                .host = host->host,
                                .publish = sl_gpu_publish,
                                .read_rows = read_rows,
                                .read_positions = read_positions};
    sl_gpu_dense_fill(&table.ops);
    sl_gpu_evict_fill(&table.ops);
    sl_gpu_attention_fill(&table.ops);
    return &table.ops;
}
