// SPDX-License-Identifier: Apache-2.0
// Purpose: how many descriptors (files and connections) this process may have open.
#pragma once

/*
 * Raises the soft limit to the hard one. Shells and systemd leave the soft limit at 1,024 for programs that call select(); ours do not.
 * For the main() of a server, before threads exist; libsluice leaves its host's limit alone.
 */
void sl_descriptors_raise(void);

// Returns the soft limit as it is now; INT_MAX where there is none.
int sl_descriptors_limit(void);

// Returns how many of them clients' connections may take, three quarters: files and calls to other processes need the rest.
int sl_descriptors_for_clients(void);
