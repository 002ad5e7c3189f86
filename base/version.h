// SPDX-License-Identifier: Apache-2.0
// Purpose: the version of everything that is built from this tree. The coordinator refuses workers of another version.
#pragma once

#define SL_VERSION "0.1.0"
