// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: answers that describe the served model: /v1/models, /v1/models/NAME, /health.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include "gateway/routes.h"

enum MHD_Result sl_models_list(const struct sl_http_request *request);
enum MHD_Result sl_models_show(const struct sl_http_request *request);
enum MHD_Result sl_models_show_health(const struct sl_http_request *request);
