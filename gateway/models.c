// SPDX-License-Identifier: Apache-2.0
#include "gateway/models.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gateway/exchange.h"

enum MHD_Result sl_models_show_health(const struct sl_http_request *request) {
    struct sl_served_model model = sl_served_model(request->reply->gateway->served);
    return model.ready
               ? sl_http_reply_json(request->reply, 200, json_pack("{s:s, s:s}", "status", "ok", "model", model.name))
               : sl_http_reply_json(request->reply, 503,
                                    json_pack("{s:s, s:s}", "status", "unavailable", "reason", model.why));
}

static json_t *describe_model(const struct sl_gateway *gateway, const struct sl_served_model *model) {
    char fingerprint[24]; // a text, because most JSON readers round 64 bits
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, model->fingerprint);
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:s}", "id", model->name, "object", "model", "created",
                     (json_int_t)gateway->started_s, "owned_by", "sluice", "max_model_len",
                     (json_int_t)model->max_positions, "default_recipe", model->default_recipe, "fingerprint",
                     fingerprint);
}

enum MHD_Result sl_models_list(const struct sl_http_request *request) {
    struct sl_served_model model = sl_served_model(request->reply->gateway->served);
    json_t *data = model.known ? json_pack("[o]", describe_model(request->reply->gateway, &model)) : json_array();
    return sl_http_reply_json(request->reply, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

enum MHD_Result sl_models_show(const struct sl_http_request *request) {
    struct sl_served_model model = sl_served_model(request->reply->gateway->served);
    if (model.known && strcmp(model.name, request->rest) == 0) {
        return sl_http_reply_json(request->reply, 200, describe_model(request->reply->gateway, &model));
    }
    struct sl_refusal refusal;
    sl_refuse_unknown(&refusal, "model", "there is no model \"%.100s\"", request->rest);
    return sl_http_reply_refusal(request->reply, &refusal);
}
