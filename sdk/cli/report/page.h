// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint as one HTML page: no script, no resource from elsewhere, light
// and dark, for wide and for narrow windows. Keys and names that are shown are
// HtmlText (sdk/cli/text.h), and its Content-Security-Policy allows styles
// only.
//
// Every bar carries its numbers: data-bytes or data-numel on its parts, and all
// of them as text for readers who do not see the bar. A pure function.

#ifndef SHARD_SDK_CLI_REPORT_PAGE_H_
#define SHARD_SDK_CLI_REPORT_PAGE_H_

#include <string>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/report/storage_map.h"

namespace shardctl {

std::string ReportPage(const CheckpointView& view, const StorageMap& storage);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_REPORT_PAGE_H_
