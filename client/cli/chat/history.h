// SPDX-License-Identifier: Apache-2.0
// Purpose: finds the file that keeps typed lines between conversations.
#pragma once

#include <limits.h>
#include <stdbool.h>

/*
 * Writes the path: $XDG_STATE_HOME/sluice/chat-history, or ~/.local/state/sluice/chat-history. Makes its folders,
 * accessible only for their owner. False: there is no such path, so no history is kept.
 */
bool sl_chat_history_path(char path_out[PATH_MAX]);
