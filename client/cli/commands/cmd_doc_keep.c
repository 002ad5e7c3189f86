// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice doc keep`: how long, and in how many stores, a document is kept.
#include "client/cli/commands/cmd_doc_keep.h"

#include <stdio.h>

#include "client/cli/message_json.h"
#include "client/cli/tool.h"

struct keep_config {
    struct sl_tool_config tool;
    int64_t keep_ms, replicas;
    bool has_keep, forever;
};

static const struct sl_option keep_options[] = {
    {"for", 0, SL_OPTION_DURATION, NULL, "TIME", "the document ends after this time from now",
     SL_FIELD(keep_config, keep_ms), 1, 3.1536e11, SL_GIVEN(keep_config, has_keep)},
    {"forever", 0, SL_OPTION_FLAG, NULL, NULL, "the document ends when it is removed", SL_FIELD(keep_config, forever)},
    {"replicas", 0, SL_OPTION_INT, NULL, "N", "stores that keep it, so that one may be lost",
     SL_FIELD(keep_config, replicas), 1, 8},
    SL_TOOL_OPTIONS,
};

static const struct sl_program keep_program = {
    .name = "sluice doc keep",
    .usage = "[options] NAME",
    .summary = "Change how long a document is kept, and in how many stores.",
    .epilog = "What no option names stays as it is. Stores get their copies, or forget them, within "
              "seconds.\n" SL_EXIT_CODES_HELP,
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    SL_OPTIONS(keep_options),
};

static enum sl_status keep(struct sl_client *client, void *arg, char **arguments, struct sl_error *err) {
    const struct keep_config *config = arg;
    SL_FAIL_IF(config->has_keep && config->forever, err, SL_ERR_INVALID, "--for and --forever contradict each other");
    SL_FAIL_IF(!config->has_keep && !config->forever && config->replicas == 0, err, SL_ERR_INVALID,
               "nothing to change: give --for, --forever or --replicas");
    Sluice__V1__PinDocumentRequest request = SLUICE__V1__PIN_DOCUMENT_REQUEST__INIT;
    request.name = arguments[0];
    request.replicas = (int32_t)config->replicas;
    if (config->has_keep || config->forever) {
        request.keep_present_case = SLUICE__V1__PIN_DOCUMENT_REQUEST__KEEP_PRESENT_KEEP_MS;
        request.keep_ms = config->forever ? 0 : config->keep_ms;
    }
    Sluice__V1__Document *document;
    SL_TRY(sl_client_pin_document(client, &request, sl_deadline_in_ms(config->tool.timeout_ms), &document, err));
    char ends[SL_UTC_BYTES];
    if (config->tool.json) {
        sl_message_print_json(&document->base, stdout);
    } else {
        if (document->expires_ms > 0) {
            sl_utc_text(document->expires_ms, ends);
        }
        printf("kept %s: replicas %d, ends %s\n", document->name, document->replicas,
               document->expires_ms > 0 ? ends : "never");
    }
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

int sl_command_doc_keep(int argc, char **argv) {
    struct keep_config config = {0};
    return sl_tool_ask(&keep_program, argc, argv, &config, keep);
}
