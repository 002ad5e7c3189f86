// SPDX-License-Identifier: Apache-2.0
// Purpose: where the lines that were typed are kept between conversations.
#pragma once

#include <limits.h>
#include <stdbool.h>

/*
 * $XDG_STATE_HOME/sluice/chat-history, or ~/.local/state/sluice/chat-history. Its folders are made, for their owner alone. False: there
 * is no such place, so nothing is kept.
 */
bool sl_chat_history_path(char path_out[PATH_MAX]);
