#include "plugin/runtime/replica_layout.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "plugin/runtime/gradient_buffer.h"
#include "plugin/runtime/name_list.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "parallel_groups";

// A parameter as a member of its group sees it.
struct Entry {
  std::string name;
  std::string form;   // "[5, 3], Float, gradient Float": equal on all members.
  std::string stage;  // Of the member.
};

struct Member {
  std::string identity;
  std::vector<Entry> entries;  // In its order.
};

std::string form_of(const StageParameter& parameter) {
  std::ostringstream text;
  text << parameter.parameter.sizes() << ", " << c10::toString(parameter.parameter.scalar_type()) << ", gradient "
       << c10::toString(gradient_dtype(parameter));
  if (!parameter.shard.empty()) text << ", part " << parameter.shard;
  return text.str();
}

std::string encode(const std::string& identity, const std::vector<std::size_t>& indices,
                   const std::vector<StageParameter>& parameters) {
  std::vector<std::string> texts{identity};
  for (std::size_t index : indices) {
    const StageParameter& parameter = parameters[index];
    texts.insert(texts.end(), {parameter.name, form_of(parameter), std::to_string(parameter.stage)});
  }
  return encode_names(texts);
}

Member decode(const std::string& bytes) {
  const std::vector<std::string> texts = decode_names(bytes);
  Member member{texts.at(0), {}};
  for (std::size_t i = 1; i + 2 < texts.size(); i += 3)
    member.entries.push_back({texts[i], texts[i + 1], texts[i + 2]});
  return member;
}

// "\"w\" ([5, 3], Float, gradient Float)" of what one lacks, or "nothing".
std::string first_missing(const Member& from, const Member& in) {
  for (const Entry& entry : from.entries) {
    const bool found = std::any_of(in.entries.begin(), in.entries.end(), [&](const Entry& other) {
      return entry.name == other.name && entry.form == other.form;
    });
    if (!found) return "\"" + entry.name + "\" (" + entry.form + ")";
  }
  return "nothing";
}

void require_same_parameters(const std::vector<Member>& members, std::size_t listed_as) {
  for (std::size_t rank = 1; rank < members.size(); ++rank) {
    const std::string first = first_missing(members[0], members[rank]);
    const std::string other = first_missing(members[rank], members[0]);
    if (first == "nothing" && other == "nothing") continue;
    const std::string number = std::to_string(rank);
    throw ScheduleError(kOrigin, "the " + std::to_string(members.size()) + " members of gradient group " +
                                     std::to_string(listed_as) + " must train the same parameters, got " + first +
                                     " on its member 0 alone and " + other + " on its member " + number +
                                     " alone; build and freeze all replicas alike");
  }
}

// The order in which this rank would have it: stages as it reduces them, dtypes apart.
std::vector<std::size_t> own_order(std::vector<std::size_t> indices, const std::vector<StageParameter>& parameters,
                                   const std::vector<int>& reduction_order) {
  const auto key = [&](std::size_t index) {
    const StageParameter& parameter = parameters[index];
    const auto position = std::find(reduction_order.begin(), reduction_order.end(), parameter.stage);
    return std::tuple(position - reduction_order.begin(), gradient_dtype(parameter), parameter.parameter.scalar_type(),
                      parameter.name);
  };
  std::sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return indices;
}

// Cuts the first member's order into buckets of this rank's parameters.
class BucketCutter {
 public:
  BucketCutter(std::size_t group, const std::vector<StageParameter>& parameters, std::int64_t bucket_bytes)
      : group_(group), parameters_(parameters), bucket_bytes_(bucket_bytes) {}

  void add(std::size_t index, const std::string& stage) {
    const StageParameter& parameter = parameters_[index];
    const auto bytes =
        parameter.parameter.numel() * static_cast<std::int64_t>(at::elementSize(gradient_dtype(parameter)));
    const auto form = std::tuple(stage, gradient_dtype(parameter), parameter.parameter.scalar_type());
    if (buckets_.empty() || form != form_ || bytes_ + bytes > bucket_bytes_) open(gradient_dtype(parameter));
    form_ = form;
    bytes_ += bytes;
    buckets_.back().indices.push_back(index);
    buckets_.back().elements += parameter.parameter.numel();
  }

  std::vector<ReplicaBucket> take() { return std::move(buckets_); }

 private:
  void open(at::ScalarType dtype) {
    buckets_.push_back({group_, {}, dtype, 0});
    bytes_ = 0;
  }

  std::size_t group_;
  const std::vector<StageParameter>& parameters_;
  std::int64_t bucket_bytes_;
  std::int64_t bytes_ = 0;
  std::tuple<std::string, at::ScalarType, at::ScalarType> form_;
  std::vector<ReplicaBucket> buckets_;
};

// The place of a host's group among the distinct ones; none for a null group, which is this rank alone.
class GroupList {
 public:
  explicit GroupList(const LayoutOptions& options) : options_(options) {}

  std::optional<std::size_t> add(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::size_t listed_as) {
    if (!group) return std::nullopt;
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g->group() == group; });
    if (found != groups.end()) return found - groups.begin();
    groups.push_back(std::make_shared<GroupCollectives>(group, options_.timeout, options_.failures));
    listed.push_back(listed_as);
    return groups.size() - 1;
  }

  std::vector<std::shared_ptr<GroupCollectives>> groups;
  std::vector<std::size_t> listed;  // As which of the host's.

 private:
  const LayoutOptions& options_;
};

std::optional<std::size_t> first_that_holds(const std::vector<GradientGroup>& groups,
                                            const std::vector<std::optional<std::size_t>>& places,
                                            const std::string& name) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].holds || groups[i].holds(name)) return places[i];
  }
  return std::nullopt;
}

// What the members of each group said, by rank in it.
std::vector<std::vector<Member>> gather_members(const ReplicaLayout& layout,
                                                const std::vector<StageParameter>& parameters,
                                                const LayoutOptions& options) {
  std::vector<std::vector<std::size_t>> indices(layout.groups.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (layout.group_of[i]) indices[*layout.group_of[i]].push_back(i);
  }
  std::vector<GroupCollectives*> groups;
  std::vector<std::string> texts;
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    const auto order = own_order(indices[group], parameters, options.reduction_order);
    groups.push_back(layout.groups[group].get());
    texts.push_back(encode(options.identity, order, parameters));
  }
  std::vector<std::vector<Member>> members;
  for (const std::vector<std::string>& of_group : gather_over(groups, texts)) {
    members.emplace_back();
    for (const std::string& bytes : of_group) members.back().push_back(decode(bytes));
  }
  return members;
}

std::vector<ReplicaBucket> cut(std::size_t group, const std::vector<Entry>& order,
                               const std::vector<StageParameter>& parameters, std::int64_t bucket_bytes) {
  BucketCutter cutter(group, parameters, bucket_bytes);
  for (const Entry& entry : order) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const StageParameter& parameter) { return parameter.name == entry.name; });
    check(found != parameters.end(), "members of a group hold the same names");
    cutter.add(found - parameters.begin(), entry.stage);
  }
  return cutter.take();
}

}  // namespace

std::int64_t ReplicaLayout::part_size(const ReplicaBucket& bucket) const {
  const std::int64_t count = groups.at(bucket.group)->size();
  return (bucket.elements + count - 1) / count;
}

std::vector<ParameterPiece> ReplicaLayout::pieces_of(const ReplicaBucket& bucket, int member,
                                                     const std::vector<StageParameter>& parameters) const {
  const std::int64_t size = part_size(bucket);
  const std::int64_t first = member * size;
  std::vector<ParameterPiece> pieces;
  std::int64_t start = 0;  // Of the parameter, in the bucket.
  for (std::size_t index : bucket.indices) {
    const std::int64_t numel = parameters.at(index).parameter.numel();
    const std::int64_t begin = std::max<std::int64_t>(first - start, 0);
    const std::int64_t end = std::min(first + size - start, numel);
    if (begin < end) pieces.push_back({index, begin, end, start + begin - first});
    start += numel;
  }
  return pieces;
}

ReplicaLayout agree_on_layout(const std::vector<GradientGroup>& groups, const std::vector<StageParameter>& parameters,
                              const LayoutOptions& options) {
  GroupList list(options);
  std::vector<std::optional<std::size_t>> places;
  for (std::size_t i = 0; i < groups.size(); ++i) places.push_back(list.add(groups[i].group, i));

  ReplicaLayout layout;
  layout.groups = list.groups;
  for (const StageParameter& parameter : parameters)
    layout.group_of.push_back(first_that_holds(groups, places, parameter.name));
  const std::vector<std::vector<Member>> gathered = gather_members(layout, parameters, options);
  for (std::size_t group = 0; group < gathered.size(); ++group) {
    const std::vector<Member>& members = gathered[group];
    require_same_parameters(members, list.listed[group]);
    layout.members.emplace_back();
    for (const Member& member : members) layout.members.back().push_back(member.identity);
    std::vector<ReplicaBucket> buckets = cut(group, members[0].entries, parameters, options.bucket_bytes);
    layout.buckets.insert(layout.buckets.end(), buckets.begin(), buckets.end());
  }
  return layout;
}

}  // namespace dualpipe
