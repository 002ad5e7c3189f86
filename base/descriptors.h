// SPDX-License-Identifier: Apache-2.0
// Purpose: how many descriptors (files and connections) this process may have open.
#pragma once

/*
 * Raises the soft limit to the hard one. Shells and systemd leave the soft limit at 1,024 for programs that call
 * select(); Sluice does not call it.
 * Only the main() of a server calls this, before it starts threads; libsluice does not change the limit of the program
 * that loads it.
 */
void sl_descriptors_raise(void);

// Returns the current soft limit; INT_MAX if there is none.
int sl_descriptors_limit(void);

// Returns how many descriptors clients' connections may take: three quarters of the limit. Files and calls to other
// processes need the rest.
int sl_descriptors_for_clients(void);
