#include "examples/pretrain_gpt/strict_yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <optional>
#include <sstream>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

class PlainOnly : public YAML::EventHandler {
 public:
  explicit PlainOnly(const YamlOrigin& origin) : origin_(origin) {}

  // Where a node cannot begin, as at a comma, the parser finds empty documents for ever.
  void OnDocumentStart(const YAML::Mark& mark) override {
    key_.clear();
    if (start_ == mark.pos) {
      refuse(mark, "must be YAML, one `key: value` a line, got something else");
    }
    start_ = mark.pos;
    depth_ = 0;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { see(mark, "", anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    refuse(mark, "must be written out, got an alias (*name); repeat the value");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    see(mark, tag, anchor);
    if (depth_ == 1) {
      is_key_ = !is_key_;
      key_ = is_key_ ? value : key_;
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  void see(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) {
      refuse(mark, "must be written without an anchor (&name); remove it");
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      refuse(mark, fmt::format("must be written without a tag, got {}; remove it", tag));
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    see(mark, tag, anchor);
    if (++depth_ > kDeepestYaml) {
      refuse(mark, fmt::format("must not be nested deeper than {} levels", kDeepestYaml));
    }
  }

  // What is no scalar is a value.
  void close() {
    if (--depth_ == 1) {
      is_key_ = false;
    }
  }

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& rule) const {
    throw UserError(origin_(mark.line + 1), fmt::format("{} {}", key_.empty() ? "the file" : key_, rule));
  }

  const YamlOrigin& origin_;
  std::optional<int> start_;  // Of the latest document.
  int depth_ = 0;
  bool is_key_ = false;  // The last scalar of the top level was a key.
  std::string key_;
};

}  // namespace

void check_plain_yaml(const std::string& text, const YamlOrigin& origin) {
  if (text.size() > kLongestYaml) {
    throw UserError(origin(1),
                    fmt::format("the file must be at most {} bytes long, got {}", kLongestYaml, text.size()));
  }
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  PlainOnly handler(origin);
  while (parser.HandleNextDocument(handler)) {
  }
}

}  // namespace pretrain_gpt
