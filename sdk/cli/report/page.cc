// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/report/page.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "sdk/cli/report/template.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// The most rows of lists that are not drawn: groups, scalars, blobs, aliases.
constexpr size_t kMostLines = 50;

std::string Count(uint64_t count, const char* one, const char* many) {
  return CountText(count) + " " + (count == 1 ? one : many);
}

// Returns a part of a whole as a CSS width.
std::string Percent(double part, double whole) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f%%",
                whole > 0 ? 100 * part / whole : 0);
  return text;
}

std::string Key(const std::string& text) {
  return "<span class=\"key\">" + HtmlText(text) + "</span>";
}

// Returns a list of hyperparameters that a browser may break between two.
std::string BetweenValues(std::string html) {
  const std::string between = "&amp;";
  for (size_t at = 0; (at = html.find(between, at)) != std::string::npos;) {
    at += between.size();
    html.insert(at, "<wbr>");
  }
  return html;
}

class Page {
 public:
  Page(const CheckpointView& view, const StorageMap& storage)
      : view_(view), storage_(storage) {
    // Shades of a role's color, by element type; beyond the fourth they repeat.
    std::map<int32_t, int> shades;
    for (const Kind& kind : storage.kinds) {
      const char role = kind.role == SHARD_ROLE_STATE    ? 's'
                        : kind.role == SHARD_ROLE_BUFFER ? 'b'
                                                         : 'p';
      colors_.push_back(std::string(1, role) +
                        std::to_string(shades[kind.role]++ % 4));
    }
  }

  std::string Text() const {
    return FillTemplate(kReportTemplate,
                        {{"title", HtmlText(Title() + ": " + view_.path)},
                         {"heading", HtmlText(Title())},
                         {"subtitle", Subtitle()},
                         {"facts", Facts()},
                         {"holds_text", HoldsText()},
                         {"legend", Legend()},
                         {"files", Files()},
                         {"tensors_text", TensorsText()},
                         {"hues", Hues()},
                         {"tensors", Tensors()},
                         {"kinds", Kinds()},
                         {"training", Training()},
                         {"aliases", Aliases()},
                         {"version", shard_version()}});
  }

 private:
  // Every data file is a rank's own.
  bool FilesAreRanks() const {
    return !view_.is_safetensors() &&
           view_.info.world_size == view_.info.num_files;
  }

  std::string FileNames(size_t first, size_t last) const {
    if (first != last) {
      return (FilesAreRanks() ? "ranks " : "files ") + CountText(first) +
             " to " + CountText(last);
    }
    return FilesAreRanks() ? "rank " + CountText(first)
                           : view_.files[first].name;
  }

  std::string KindName(size_t kind) const {
    return RoleText(storage_.kinds[kind].role) + " " +
           storage_.kinds[kind].type;
  }

  std::string Title() const {
    if (view_.is_safetensors()) return "Safetensors";
    return "Checkpoint of step " + CountText(static_cast<uint64_t>(
                                       std::max<int64_t>(view_.info.step, 0)));
  }

  std::string Subtitle() const {
    const std::string id = IdText(view_.info);
    return Key(view_.path) +
           (id.empty() ? "" : "<br><span class=\"note\">id " + id + "</span>");
  }

  std::string Facts() const {
    const shard_checkpoint_info& info = view_.info;
    uint64_t params = 0;
    double elements = 0;
    uint64_t tensors = 0;
    for (const Kind& kind : storage_.kinds) {
      tensors += static_cast<uint64_t>(kind.tensors);
      if (kind.role != SHARD_ROLE_PARAM) continue;
      params += static_cast<uint64_t>(kind.tensors);
      elements += static_cast<double>(kind.numel);
    }
    const uint64_t aliases = view_.tensors.size() - tensors;
    std::string text;
    const auto fact = [&](const std::string& name, const std::string& value,
                          const std::string& note) {
      text += "<div><dt>" + name + "</dt><dd>" + value + "<small>" + note +
              "</small></dd></div>\n";
    };
    fact("Parameters", ShortCount(elements),
         "in " + Count(params, "tensor", "tensors"));
    fact("Tensors", CountText(tensors),
         Count(aliases, "alias", "aliases") + " beside them");
    fact("Bytes", BytesText(info.tensor_bytes),
         BytesText(info.file_bytes) + " in files");
    fact("Files", CountText(view_.files.size()),
         info.world_size > 0
             ? "saved by " + Count(static_cast<uint64_t>(info.world_size),
                                   "rank", "ranks")
             : "of safetensors");
    char imbalance[32];
    std::snprintf(imbalance, sizeof(imbalance), "%.3f", storage_.imbalance());
    fact("Imbalance", imbalance, "largest file over the mean");
    return text;
  }

  std::string HoldsText() const {
    std::string text = FilesAreRanks()
                           ? "A bar is what a rank wrote into its file"
                           : "A bar is a data file";
    if (storage_.files_per_row > 1) {
      text += ", here " + CountText(storage_.files_per_row) +
              " of them put together";
    }
    return text + ". The longest is " + BytesText(Longest()) + ".";
  }

  uint64_t Longest() const {
    uint64_t longest = 0;
    for (const FileRow& row : storage_.rows) {
      longest = std::max(longest, std::max(row.file_bytes, row.tensor_bytes));
    }
    return longest;
  }

  std::string Legend() const {
    std::string text;
    for (size_t k = 0; k < storage_.kinds.size(); ++k) {
      text +=
          "<li><i class=\"" + colors_[k] + "\"></i>" + KindName(k) + "</li>\n";
    }
    return text + "<li><i class=\"rest\"></i>header and alignment</li>\n";
  }

  std::string Files() const {
    std::string text =
        "<table class=\"bars\" role=\"table\"><caption>Bytes per " +
        std::string(FilesAreRanks() ? "rank" : "file") +
        ", by role and element type</caption>\n<thead role=\"rowgroup\">"
        "<tr role=\"row\"><th scope=\"col\" role=\"columnheader\">Where</th>"
        "<th scope=\"col\" role=\"columnheader\">What</th>"
        "<th scope=\"col\" class=\"number\" role=\"columnheader\">Bytes</th>"
        "</tr></thead>\n<tbody role=\"rowgroup\">\n";
    const auto longest = static_cast<double>(Longest());
    for (const FileRow& row : storage_.rows) {
      std::string parts;
      std::string label;
      const auto part = [&](const std::string& color, const std::string& name,
                            uint64_t bytes) {
        if (bytes == 0) return;
        const std::string what = name + ", " + BytesText(bytes);
        label += (label.empty() ? "" : "; ") + what;
        parts +=
            "<span class=\"" + color +
            "\" style=\"width:" + Percent(static_cast<double>(bytes), longest) +
            "\" data-bytes=\"" + std::to_string(bytes) + "\" title=\"" + what +
            "\"></span>";
      };
      for (size_t k = 0; k < row.by_kind.size(); ++k) {
        part(colors_[k], KindName(k), row.by_kind[k]);
      }
      part("rest", "header and alignment",
           row.file_bytes - std::min(row.file_bytes, row.tensor_bytes));
      text += "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">" +
              HtmlText(FileNames(row.first, row.last)) +
              "</th><td class=\"draw\" role=\"cell\"><div class=\"track\">"
              "<div class=\"bar\" role=\"img\" aria-label=\"" +
              (label.empty() ? "nothing" : label) + "\">" + parts +
              "</div></div></td><td class=\"number\" role=\"cell\">" +
              BytesText(row.file_bytes) + "</td></tr>\n";
    }
    return text + "</tbody></table>\n";
  }

  // The colors of a few files, evenly chosen; files between them have colors
  // between theirs.
  std::string Hues() const {
    constexpr size_t kMostHues = 12;
    const size_t files = view_.files.size();
    const size_t shown = std::min(files, kMostHues);
    std::string text;
    for (size_t i = 0; i < shown; ++i) {
      const size_t file = shown < 2 ? 0 : i * (files - 1) / (shown - 1);
      text += "<li><i class=\"hue\" style=\"--h:" + std::to_string(Hue(file)) +
              "\"></i>" + HtmlText(FileNames(file, file)) + "</li>\n";
    }
    return text;
  }

  std::string HolderNames(const Striped& striped) const {
    size_t first = striped.stripes.front().first;
    size_t last = striped.stripes.front().last;
    for (const Stripe& stripe : striped.stripes) {
      first = std::min(first, stripe.first);
      last = std::max(last, stripe.last);
    }
    return HtmlText(FileNames(first, last));
  }

  std::string TensorsText() const {
    return std::string("A stripe is what one ") +
           (FilesAreRanks() ? "rank" : "file") +
           " holds of a tensor, in the order of its elements, with a color for "
           "each. All bars are equally long.";
  }

  std::string Tensors() const {
    const size_t tensors = static_cast<size_t>(
        std::count_if(view_.tensors.begin(), view_.tensors.end(),
                      [](const TensorView& t) { return !t.is_alias(); }));
    std::string text =
        "<table class=\"bars tensors\" role=\"table\"><caption>" +
        (storage_.largest.size() < tensors
             ? "The largest " + CountText(storage_.largest.size()) + " of " +
                   CountText(tensors) + " tensors"
             : Count(tensors, "tensor", "tensors")) +
        "</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">"
        "<th scope=\"col\" role=\"columnheader\">Key</th>"
        "<th scope=\"col\" role=\"columnheader\">Where its elements are</th>"
        "<th scope=\"col\" class=\"number\" role=\"columnheader\">Bytes</th>"
        "</tr></thead>\n<tbody role=\"rowgroup\">\n";
    for (const Striped& striped : storage_.largest) {
      const TensorView& tensor = view_.tensors[striped.tensor];
      const shard_tensor_info& info = tensor.info;
      std::string note = RoleText(info.role) + " " + tensor.type + " " +
                         ShapeText(info.shape, info.ndim);
      if (info.role == SHARD_ROLE_PARAM && info.trainable == 0) {
        note += ", frozen";
      }
      if (!striped.stripes.empty()) note += ", on " + HolderNames(striped);
      text += "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">" +
              Key(tensor.key) + "<span class=\"note\">" + note +
              "</span></th><td class=\"draw\" role=\"cell\">" +
              Stripes(striped, info.dtype == SHARD_OPAQUE) +
              "</td><td class=\"number\" role=\"cell\">" +
              BytesText(info.bytes) + "</td></tr>\n";
    }
    return text + "</tbody></table>\n";
  }

  std::string Stripes(const Striped& striped, bool opaque) const {
    std::string parts;
    const int64_t numel = std::accumulate(
        striped.stripes.begin(), striped.stripes.end(), int64_t{0},
        [](int64_t sum, const Stripe& stripe) { return sum + stripe.numel; });
    for (const Stripe& stripe : striped.stripes) {
      const std::string what = HtmlText(FileNames(stripe.first, stripe.last)) +
                               ": " +
                               CountText(static_cast<uint64_t>(stripe.numel)) +
                               (opaque ? " bytes" : " elements");
      parts += "<span class=\"hue\" style=\"width:" +
               Percent(static_cast<double>(stripe.numel),
                       static_cast<double>(numel)) +
               ";--h:" + std::to_string(Hue(stripe.first)) +
               "\" data-numel=\"" + std::to_string(stripe.numel) +
               "\" title=\"" + what + "\"></span>";
    }
    std::string label = Count(striped.stripes.size(), "stripe", "stripes");
    if (!striped.stripes.empty()) label += " on " + HolderNames(striped);
    return "<div class=\"track\"><div class=\"bar stripe\" role=\"img\" "
           "aria-label=\"" +
           label + "\">" + parts + "</div></div>";
  }

  // Returns a file's hue. Few files have hues far apart, many form a rainbow;
  // the whole circle is never used, so that the last hue differs from the
  // first.
  int Hue(size_t file) const {
    const size_t files = std::max<size_t>(1, view_.files.size());
    return static_cast<int>((212 + file * 300 / files) % 360);
  }

  std::string Kinds() const {
    std::string text =
        "<table class=\"plain\"><caption>Tensors without their aliases"
        "</caption>\n<thead><tr><th scope=\"col\">Kind</th>"
        "<th scope=\"col\" class=\"number\">Tensors</th>"
        "<th scope=\"col\" class=\"number later\">Elements</th>"
        "<th scope=\"col\" class=\"number\">Bytes</th>"
        "<th scope=\"col\" class=\"number\">Share</th></tr></thead><tbody>\n";
    for (size_t k = 0; k < storage_.kinds.size(); ++k) {
      const Kind& kind = storage_.kinds[k];
      char share[32];
      std::snprintf(share, sizeof(share), "%.1f%%",
                    view_.info.tensor_bytes == 0
                        ? 0
                        : 100 * static_cast<double>(kind.bytes) /
                              static_cast<double>(view_.info.tensor_bytes));
      text += "<tr><th scope=\"row\">" + KindName(k) +
              "</th><td class=\"number\">" +
              CountText(static_cast<uint64_t>(kind.tensors)) +
              "</td><td class=\"number later\">" +
              CountText(static_cast<uint64_t>(kind.numel)) +
              "</td><td class=\"number\">" + BytesText(kind.bytes) +
              "</td><td class=\"number\">" + share + "</td></tr>\n";
    }
    return text + "</tbody></table>\n";
  }

  // Returns a table of two columns; "" when it has no rows.
  static std::string Pairs(
      const std::string& caption, const char* left, const char* right,
      const std::vector<std::pair<std::string, std::string>>& rows) {
    if (rows.empty()) return "";
    std::string text = "<table class=\"plain\"><caption>" + caption;
    if (rows.size() > kMostLines) {
      text += ", the first " + CountText(kMostLines) + " of " +
              CountText(rows.size());
    }
    text += "</caption>\n<thead><tr><th scope=\"col\">" + std::string(left) +
            "</th><th scope=\"col\">" + right + "</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < rows.size() && i < kMostLines; ++i) {
      text += "<tr><th scope=\"row\" class=\"wide\">" + rows[i].first +
              "</th><td class=\"wide\">" + rows[i].second + "</td></tr>\n";
    }
    return text + "</tbody></table>\n";
  }

  std::string Training() const {
    std::vector<std::pair<std::string, std::string>> groups;
    for (size_t g = 0; g < view_.groups.size(); ++g) {
      groups.emplace_back(std::to_string(g),
                          BetweenValues(Key(view_.groups[g])));
    }
    std::vector<std::pair<std::string, std::string>> scalars;
    for (const ScalarView& scalar : view_.scalars) {
      scalars.emplace_back(Key(scalar.name), NumberText(scalar.value));
    }
    std::vector<std::pair<std::string, std::string>> blobs;
    for (const BlobView& blob : view_.blobs) {
      blobs.emplace_back(Key(blob.name), BlobRuleText(blob.rule) + ", rank " +
                                             std::to_string(blob.rank) + ", " +
                                             BytesText(blob.bytes));
    }
    const std::string tables =
        Pairs("Param groups", "Group", "Optimizer", groups) +
        Pairs("Scalars", "Name", "Value", scalars) +
        Pairs("The program's own bytes", "Name", "What", blobs);
    if (tables.empty()) return "";
    return "<section aria-labelledby=\"training\">\n<h2 id=\"training\">"
           "Training</h2>\n" +
           tables + "</section>\n";
  }

  std::string Aliases() const {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const TensorView& tensor : view_.tensors) {
      if (!tensor.is_alias()) continue;
      rows.emplace_back(
          Key(tensor.key),
          Key(view_.tensors[static_cast<size_t>(tensor.info.alias_of)].key));
    }
    if (rows.empty()) return "";
    return "<section aria-labelledby=\"aliases\">\n<h2 id=\"aliases\">"
           "Tied tensors</h2>\n" +
           Pairs("Names of a tensor that is stored once", "Name", "Stored as",
                 rows) +
           "</section>\n";
  }

  const CheckpointView& view_;
  const StorageMap& storage_;
  std::vector<std::string> colors_;  // CSS classes, by kind.
};

}  // namespace

std::string ReportPage(const CheckpointView& view, const StorageMap& storage) {
  return Page(view, storage).Text();
}

}  // namespace shardctl
