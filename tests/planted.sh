#!/usr/bin/env bash
# Are the tests sharp? Plants bugs in a copy of the tree, and has each found: by the simulation, within
# 1,000 seeds (10,000 of two ends), by small worlds in every order, or by a test that `cargo test` runs too.
#   tests/planted.sh          all of them
#   tests/planted.sh --gate   those that are new or in a file that differs since the commit which tests/planted-base names, and
#                             a quarter of the others, the next one with each commit; none that a test in real time (`rt_*`)
#                             has to find
# When all were found in a clean tree, tests/planted-base names its commit.
#
# A bug is one or more places of the engine, or of the software NIC, and what to put there, where PLANTED
# says whether this bug is the one: all are planted at once and built once, and the environment chooses. A
# place that is not there exactly once is an error, before anything is built: then the code has changed, and
# the bug has to be planted anew.
set -euo pipefail
cd "$(dirname "$0")/.."

SEEDS=1000
COPY=$PWD/target/planted/tree
# Where the gate builds its searches: other crates are the same. So are their flags.
export CARGO_TARGET_DIR=$PWD/target
# The engine as users build it, without its own assertions.
export CARGO_PROFILE_SWEEP_DEBUG_ASSERTIONS=false CARGO_PROFILE_SWEEP_OVERFLOW_CHECKS=false CARGO_PROFILE_SWEEP_DEBUG=none
export CARGO_INCREMENTAL=0 RUST_BACKTRACE=0 RANDOM_SEEDS=$SEEDS FAIRNESS_SEEDS=60
SWEEP="--quiet --profile sweep --locked --manifest-path $COPY/Cargo.toml"

case "$*" in
  "") ONLY_SOME= ;;
  --gate) ONLY_SOME=yes ;;
  *) sed -n '2,/^#$/s/^#//p' "$0" >&2; exit 2 ;;
esac

# The commit in which all bugs were found, and this script then, without its line continuations.
base=$(cat tests/planted-base 2>/dev/null || true)
then=$(git show "$base:tests/planted.sh" 2>/dev/null | sed ':again; /\\$/ { N; s/ \\\n */ /; b again }' || true)
# The commit that is copied below; none if something else is.
head=$([ -n "$(git status --porcelain --untracked-files=normal -- ':!tests/planted-base')" ] || git rev-parse HEAD)

# Of each bug: the tests that find it, whether this script has changed it since the base, and the files that it changes, each
# followed by a space.
names=() finders=() are_new=() files=() misplaced=0

# bug NAME FINDERS: what is planted next; `simulate`, `simulate-ends`, `simulate-p2p`, `orders-p2p`,
# `messages`, the engine's own tests of them, `loom:SCENARIO` of the library's test `handles`, or the test that has to find it;
# all of them have to.
bug() {
  names+=("$1") finders+=("$2") are_new+=("") files+=("")
  [[ $then == *"bug \"$1\" $2"* || $then == *"bug \"$1\" \"$2\""* ]] || are_new[-1]=yes
}

# plant FILE FROM TO
plant() {
  local file=$COPY/$1 content without
  files[-1]+="$1 "
  [[ $then == *"$2"* && $then == *"$3"* ]] || are_new[-1]=yes
  if ! [ -f "$file" ]; then
    misplace "there is no $1"
    return
  fi
  content=$(cat "$file" && echo end)
  content=${content%end}
  without=${content//"$2"/}
  if [ $((${#content} - ${#without})) != ${#2} ]; then
    misplace "$1 has this $(((${#content} - ${#without}) / ${#2})) times, not once: $2"
    return
  fi
  printf '%s' "${content/"$2"/"${3//PLANTED/crate::planted(${#names[@]})}"}" > "$file"
}

# misplace WHY: a place of this bug is not there.
misplace() {
  echo "cannot plant \"${names[-1]}\": $1" >&2
  misplaced=1
}

fresh_copy() {
  rm -rf "$COPY"
  mkdir -p "$COPY"
  # With the times of now: what was planted before must not pass for compiled.
  git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C "$COPY" -xmf -
  cat >> "$COPY/core/src/lib.rs" << 'RUST'

extern crate std;

static PLANTED: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {
    std::env::var("PLANTED").map_or(0, |bug| bug.parse().expect("the number of a bug"))
});

/// Whether this bug is planted.
pub fn planted(bug: usize) -> bool {
    *PLANTED == bug
}
RUST
  # Some bugs make a test wait until it gives up.
  local patience=$COPY/std-shim/library/tests/fixture/mod.rs
  sed -i '/const LONG: Duration/s/600/20/' "$patience" && grep -q 'LONG: Duration = Duration::from_secs(20)' "$patience"
  for crate in software-nic library; do
    echo 'pub(crate) use polyrail_core::planted;' >> "$COPY/std-shim/$crate/src/lib.rs"
  done
}

# run_tests ARGS
run_tests() {
  cargo test $SWEEP -p polyrail-tests -p polyrail-software-nic -p polyrail "$@"
}

# run_messages ARGS: tests of the package `polyrail-core`.
run_messages() {
  cargo test $SWEEP -p polyrail-core --test p2p "$@"
}

# run_loom ARGS: of the library's test `handles`, under loom, whose own work is optimized in any case. With the features and
# the flags of the gate's step.
run_loom() {
  CARGO_PROFILE_SWEEP_OPT_LEVEL=1 RUSTFLAGS="--cfg polyrail_loom" CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom \
    cargo test $SWEEP -p polyrail-core -p polyrail --test handles "$@"
}

# search FINDER
search() {
  # A world that does not end is a failure.
  local simulate="timeout --foreground 600 $CARGO_TARGET_DIR/sweep/simulate"
  case $1 in
    simulate) $simulate --seed 1 --seeds "$SEEDS" ;;
    # Its worlds draw from more kinds of requests, and take a tenth of a millisecond each.
    simulate-ends) $simulate ends --seed 1 --seeds "$((10 * SEEDS))" ;;
    simulate-p2p) $simulate p2p --seed 1 --seeds "$SEEDS" ;;
    orders-p2p) $simulate p2p --states 1000000 --deviations 2 ;;
    messages) run_messages ;;
    loom:*) run_loom "${1#loom:}" ;;
    *) run_tests --test "$1" ;;
  esac
}

# find_bug NUMBER FINDER: counted from 1
find_bug() {
  local name=${names[$1 - 1]} finder=$2 output how
  if output=$(PLANTED=$1 search "$finder" 2>&1); then
    echo "not found by $finder: $name" >&2
    exit 1
  fi
  # What sleeps for ever, loom ends, and not every test comes to its end then.
  if ! how=$(grep -A1 "shortest prefix\|shortest history\|--- FAILED\|^deadlock; threads" <<< "$output"); then
    echo "$output" >&2
    exit 1
  fi
  printf '\nfound by %s: %s\n%s\n' "$finder" "$name" "$(head -4 <<< "$how")"
}

fresh_copy

bug "the window wraps one bit too late" simulate
plant core/src/virtual_qp/scheme/dqplb/window.rs 'const fn wrap(' 'fn wrap('
plant core/src/virtual_qp/scheme/dqplb/window.rs '            bit % Self::CAPACITY' \
  '            if PLANTED && bit == Self::CAPACITY { bit - 1 } else { bit % Self::CAPACITY }'

bug "a notify is sent while one batch of its data is in flight" simulate
plant core/src/virtual_qp/pump.rs 'if slot.batches_in_flight > 0 ||' \
  'if slot.batches_in_flight > u32::from(PLANTED) ||'
plant core/src/virtual_qp/scheme/spray.rs 'slot.batches_in_flight == 0' \
  'slot.batches_in_flight <= u32::from(PLANTED)'

bug "a notify with its data goes past data that is unacknowledged" simulate-ends
plant core/src/virtual_qp/one_trip.rs 'let none_before = self.sends.unacknowledged_count() == 0 &&' \
  'let none_before = (PLANTED || self.sends.unacknowledged_count() == 0) &&'

bug "a notify with its data follows requests whose data is on rails" simulate-ends
plant core/src/virtual_qp/one_trip.rs '&& spray.are_with_notify(&in_flight)' \
  '&& (PLANTED || spray.are_with_notify(&in_flight))'

bug "a notify with its data overtakes a SEND or atomic" random
plant core/src/virtual_qp/one_trip.rs '&& !self.pass_through.is_ahead_of(u64::MAX)' \
  '&& (PLANTED || !self.pass_through.is_ahead_of(u64::MAX))'

bug "a notify with its data does not wait for its FENCE" scenarios
plant core/src/virtual_qp/one_trip.rs '(!is_fenced || self.pass_through.is_idle())' \
  '(PLANTED || !is_fenced || self.pass_through.is_idle())'

bug "a credit is lost when a driver takes a batch in part" simulate
plant core/src/rail/in_flight.rs 'self.missing = count - accepted;' \
  'self.missing = count - accepted; self.credits -= u32::from(PLANTED);'

bug "an empty fragment that its driver did not take counts as posted" random
plant core/src/virtual_qp/dispatch.rs 'let all = taken > 0 &&' 'let all = (PLANTED || taken > 0) &&'

bug "a request that was reported ahead of its turn is reported in its turn again" simulate
plant core/src/virtual_qp/slot.rs 'slot.state.insert(SlotState::REPORTED);' \
  'if !PLANTED { slot.state.insert(SlotState::REPORTED); }'

bug "a request that is reported when it is done does not wait for fragments without a rail" simulate
plant core/src/virtual_qp/pump.rs 'let is_with_rails = self.unposted() == 0 ||' \
  'let is_with_rails = PLANTED || self.unposted() == 0 ||'

bug "lost fragments may still be carried out when their request is reported ahead" simulate-ends
plant core/src/virtual_qp/pump.rs 'if slot.is_done_ahead() && !health.awaits_fence' \
  'if slot.is_done_ahead() && (PLANTED || !health.awaits_fence)'

bug "what a driver did not take of a run that shares a doorbell stays in flight" random
plant core/src/virtual_qp/post_many.rs 'let mut not_taken = run.count - run.taken.count;' \
  'let mut not_taken = (run.count - run.taken.count).saturating_sub(u32::from(PLANTED));'

bug "a run that shares a doorbell mixes requests with and without numbers" random
plant core/src/virtual_qp/post_many.rs 'other.is_numbered() == slot.is_numbered()' \
  '(PLANTED || other.is_numbered() == slot.is_numbered())'

bug "a run that shares a doorbell mixes requests that wake their receivers with others" scenarios
plant core/src/virtual_qp/post_many.rs '(other.flags ^ slot.flags) & SendFlags::SOLICITED == SendFlags::empty()' \
  '(PLANTED || (other.flags ^ slot.flags) & SendFlags::SOLICITED == SendFlags::empty())'

bug "fragments of requests that are posted together are counted in 32 bits" scenarios
plant core/src/virtual_qp/post_many.rs 'let left = fragments.min(u64::from(MOST_SHARED)) as u32;' \
  'let fragments = if PLANTED { u64::from(fragments as u32) } else { fragments };
            let left = fragments.min(u64::from(MOST_SHARED)) as u32;'

bug "of several long requests with one doorbell, the second begins where the first did" simulate
plant core/src/virtual_qp/post_many.rs 'let before = if id == run.first { run.offset } else { 0 };' \
  'let before = if PLANTED || id == run.first { run.offset } else { 0 };'

bug "what is posted again of a list of buffers is of the first one" simulate-ends
plant core/src/virtual_qp/list.rs 'let mut from = Walk::at(sends, batch.wr, batch.offset);' \
  'let mut from = Walk::at(sends, batch.wr, if PLANTED { 0 } else { batch.offset });'

bug "a fragment that ends at the border of a buffer takes the next one from its second byte" simulate
plant core/src/virtual_qp/parts.rs '            room -= length;
            self.advance(length, left);' '            room -= length;
            self.advance(length, left);
            if PLANTED && room == 0 && length == left { self.offset = 1; }'

bug "behind full fragments the rest of their buffer is passed over" "simulate scenarios"
plant core/src/virtual_qp/parts.rs 'self.advance(count * cut.size, left);' \
  'self.advance(if PLANTED { left } else { count * cut.size }, left);'

bug "a fragment has a buffer more than its queue pair takes" "simulate random"
plant core/src/virtual_qp/parts.rs 'for _ in 0..cut.buffers {' \
  'for _ in 0..cut.buffers + u32::from(PLANTED) {'

bug "the rest of a list that was acknowledged in part is found as if all its fragments were full" simulate-ends
plant core/src/virtual_qp/parts.rs 'if slot.is_some_and(|slot| slot.state.contains(SlotState::LISTED)) {' \
  'if !PLANTED && slot.is_some_and(|slot| slot.state.contains(SlotState::LISTED)) {'

bug "a list that is one fragment has no buffers left when it is re-routed" scenarios
plant core/src/virtual_qp/whole_list.rs '!self.reroute.is_on' '(PLANTED || !self.reroute.is_on)'

bug "a list that its driver refused waits without its buffers" scenarios
plant core/src/virtual_qp/whole_list.rs 'self.add_parts(id, buffers)?;' \
  'if !PLANTED { self.add_parts(id, buffers)?; }'

bug "a SEND that failed behind one that succeeded is reported as a success" "scenarios simulate"
plant core/src/virtual_qp/complete.rs \
  'completion.status.is_success() && may_complete(TagKind::Send, completion)' \
  '(PLANTED || completion.status.is_success()) && may_complete(TagKind::Send, completion)'

bug "a completion of what the engine did not post is of a SEND" scenarios
plant core/src/rail/in_flight.rs 'tag != Tag::NONE &&' '(PLANTED || tag != Tag::NONE) &&'

bug "a notify overtakes a SEND or atomic that went straight to rail 0" simulate
plant core/src/virtual_qp/pump.rs 'self.pass_through.is_ahead_of(id) ||' \
  '(self.pass_through.is_ahead_of(id) && !PLANTED) ||'
plant core/src/virtual_qp/pass_through/state.rs 'const fn notify_limit' 'fn notify_limit'
plant core/src/virtual_qp/pass_through/state.rs 'if ordered { self.oldest } else { NONE }' \
  'if ordered && !PLANTED { self.oldest } else { NONE }'

bug "numbers of DQPLB overtake a plain WRITE" simulate
plant core/src/virtual_qp/scheme/dqplb/mod.rs 'in_flight_before(self.unnumbered_until)' \
  '(in_flight_before(self.unnumbered_until) && !PLANTED)'

bug "numbers of DQPLB overtake an atomic that went straight to rail 0" simulate
plant core/src/virtual_qp/scheme/dqplb/mod.rs '|| pass_through_ahead' \
  '|| (pass_through_ahead && !PLANTED)'

bug "an inline request is compared with rail 0 only" simulate
plant core/src/virtual_qp/post.rs 'let inline = self.rails.iter()' \
  'let inline = self.rails.iter().take(if PLANTED { 1 } else { RAILS })'

bug "the longest fragment is compared with rail 0 only" simulate
plant core/src/virtual_qp/build.rs 'if limit < config.max_msg_size' \
  'if limit < config.max_msg_size && !(PLANTED && rail > 0)'

bug "a card tells the smallest receive queue" simulate
plant core/src/virtual_qp/build.rs \
  'let receives = self.rails.iter().map(|rail| rail.recvs.limit()).max();' \
  'let receives = self.rails.iter().map(|rail| rail.recvs.limit());
   let receives = if PLANTED { receives.min() } else { receives.max() };'

bug "a completion is matched by its number only, whatever device and queue pair it is of" simulate
plant core/src/virtual_qp/complete.rs '!rail.is_at(device, completion.qp_num) ||' \
  '!(PLANTED || rail.is_at(device, completion.qp_num)) ||'

bug "a single rail takes the completions of another one with its number" simulate
plant core/src/virtual_cq/poll.rs 'qp.is_only_rail(device, first.qp_num)' \
  'PLANTED || qp.is_only_rail(device, first.qp_num)'

bug "equal numbers may be attached" simulate
plant core/src/virtual_cq/attach.rs \
  'if let Some(index) = self.registry.index_of(virtual_qp_num) {' \
  'if let Some(index) = self.registry.index_of(virtual_qp_num).filter(|_| !PLANTED) {'

bug "keys are trusted where they stand if their device is right" "scenarios simulate-ends"
plant core/src/virtual_qp/keys.rs 'const fn is_the_only_one_of(' 'fn is_the_only_one_of('
plant core/src/virtual_qp/keys.rs 'self.0 == device.0 as u64' \
  '(if PLANTED { self.0 as u32 as u64 } else { self.0 }) == device.0 as u64'

bug "of several keys of one device the first is used for all that it meets" "scenarios simulate-ends"
plant core/src/virtual_qp/keys.rs '.nth(earlier)' '.nth(if PLANTED { 0 } else { earlier })'

bug "a queue pair in the place of another uses the first keys of its device" "scenarios simulate-ends"
plant core/src/virtual_qp/keys.rs 'let paired = self.position(device, self.peer_of_rail.get(at).copied());' \
  'let paired = if PLANTED { None } else { self.position(device, self.peer_of_rail.get(at).copied()) };'

bug "receives keep their keys in the old order when devices are paired" scenarios
plant core/src/virtual_qp/build.rs 'self.data_receives.renumber(' 'if !PLANTED { self.data_receives.renumber('
plant core/src/virtual_qp/build.rs '(&places.collect::<ArrayVec<_, RAILS>>());' '(&places.collect::<ArrayVec<_, RAILS>>()); }'

bug "a list of a SEND has keys for the device of rail 0 only" scenarios
plant core/src/virtual_qp/pass_through/mod.rs 'let devices = if self.reroute.is_on {' \
  'let devices = if !PLANTED && self.reroute.is_on {'

bug "a receive of a shared queue is taken for a send" simulate
plant core/src/rail/tag.rs 'pub const fn from_wr_id(wr_id: u64) -> Self {
        Self(wr_id)' 'pub fn from_wr_id(wr_id: u64) -> Self {
        Self(if PLANTED { wr_id | Self::MARK } else { wr_id })'
plant core/src/virtual_qp/complete.rs 'completion.opcode.is_recv() == receives' \
  'PLANTED || completion.opcode.is_recv() == receives'

bug "what was attached before there was a queue gives entries of it back" scenarios
plant core/src/virtual_cq/attach.rs 'return Ok(Reserved { queue: None, entries });' \
  'return Ok(Reserved { queue: if PLANTED { Some(0) } else { None }, entries });'

bug "a sum of entries that 32 bits do not hold is cut off" scenarios
plant core/src/virtual_cq/attach.rs 'match reserved[at].checked_add(entries) {' \
  'match if PLANTED { Some(reserved[at].saturating_add(entries)) } else { reserved[at].checked_add(entries) } {'

bug "what found no budget comes after what completed later" simulate
plant core/src/virtual_cq/poll.rs 'self.hand_over_waiting(qps, &mut budget, &mut polled);
        let limit' 'if !PLANTED { self.hand_over_waiting(qps, &mut budget, &mut polled); }
        let limit'

bug "the rail freed last is not preferred" random
plant core/src/virtual_qp/dispatch.rs 'self.chooser.prefer_freed();' \
  'if !PLANTED { self.chooser.prefer_freed(); }'

bug "turns begin anew after each rail has had its turn" random
plant core/src/virtual_qp/choose.rs 'self.ahead = if gets_less { here } else { here << 1 };' \
  'self.ahead = match () {
            () if PLANTED && round.left == 0 => u32::MAX,
            () if gets_less => here,
            () => here << 1,
        };'

bug "a reserved rail takes no fragments though it is alone" scenarios
plant core/src/virtual_qp/state.rs '!self.rails[at].leaves_fragments() || self.is_needed(at)' \
  '!self.rails[at].leaves_fragments() || (!PLANTED && self.is_needed(at))'

bug "a standby rail is open while a home rail is in service" simulate-ends
plant core/src/virtual_qp/state.rs '!rail.is_standby && rail.is_in_service()' \
  '!PLANTED && !rail.is_standby && rail.is_in_service()'

bug "a standby rail is not opened when the last home rail leaves service" simulate-ends
plant core/src/virtual_qp/state.rs 'if self.rails[at].leaves_fragments() {' \
  'if self.rails[at].is_reserved || (!PLANTED && self.rails[at].is_standby) {'

bug "what a standby rail lost is posted to it again while a home rail is in service" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs '&& !self.is_standing_by(own);' \
  '&& (PLANTED || !self.is_standing_by(own));'

bug "new shares go over a standby rail while a home rail is in service" simulate-p2p
plant core/src/p2p/sender/isend.rs '(available & self.lanes.open, [0, 1, 2, 3, 4, 5, 6, 7])' \
  '(if PLANTED { available } else { available & self.lanes.open }, [0, 1, 2, 3, 4, 5, 6, 7])'

bug "the standby rails of a connection stay closed when the last home rail fails" simulate-p2p
plant core/src/p2p/lanes.rs 'if any_home {' 'if PLANTED || any_home {'

bug "entries go over a standby rail while a home rail is in service" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'lane.health.lifecycle.is_in_service() && self.lanes.is_open(lane)' \
  'lane.health.lifecycle.is_in_service() && (PLANTED || self.lanes.is_open(lane))'

bug "bytes are not given back when a driver refuses" random
plant core/src/rail/in_flight.rs 'self.bytes_posted -= u64::from(batch.length);' \
  'self.bytes_posted -= if PLANTED { 0 } else { u64::from(batch.length) };'

bug "a data receive that was refused leaves rail 0's receive queue to data" scenarios
plant core/src/virtual_qp/data_receives.rs 'self.used = self.next > 0;' 'self.used = PLANTED || self.next > 0;'

bug "a receive queue is for what was refused there first" scenarios
plant core/src/virtual_qp/receive.rs '        if !self.data_receives.used() {
            self.rails[0].recvs.set_kind(TagKind::NotifyRecv);' \
  '        if !PLANTED && !self.data_receives.used() {
            self.rails[0].recvs.set_kind(TagKind::NotifyRecv);'

bug "a request that was refused chose for all that they may be reported when they are done" scenarios
plant core/src/virtual_qp/post.rs 'any |= slot.state.contains(SlotState::WHEN_DONE);' \
  'any |= !PLANTED && slot.state.contains(SlotState::WHEN_DONE);'

bug "FENCE waits for READs only" random
plant core/src/virtual_qp/dispatch.rs 'let passes = self.pass_through' \
  'let fetches = || self.all_rails().flat_map(|rail| rail.sends.iter()).any(|b| b.opcode.is_fetching());
   let passes = PLANTED && !fetches() || self.pass_through'

bug "a SEND that waits holds up the WRITEs behind it" random
plant core/src/virtual_qp/post.rs 'if self.sends.pending_count() > 1 {' \
  'if self.sends.pending_count() > 1 || PLANTED && self.pass_through.is_waiting() {'
plant core/src/virtual_qp/dispatch.rs 'while let Some(id) = self.sends.front_pending() {' \
  'while let Some(id) = self.sends.front_pending().filter(|_| !PLANTED || !self.pass_through.is_waiting()) {'

bug "only the last fragment of a request of DQPLB is SOLICITED" random
plant core/src/virtual_qp/scheme/dqplb/numbers.rs \
  'slot.last_flags.intersection(SendFlags::SOLICITED)' \
  'if PLANTED { SendFlags::empty() } else { slot.last_flags.intersection(SendFlags::SOLICITED) }'

bug "a solicited request of DQPLB overtakes one that wakes nobody" random
plant core/src/virtual_qp/scheme/dqplb/mod.rs 'solicited && in_flight_before(self.unsolicited_until)' \
  'solicited && !PLANTED && in_flight_before(self.unsolicited_until)'

bug "SENDs over several rails are taken with DQPLB" random
plant core/src/virtual_qp/pass_through/mod.rs 'if is_send && matches!(self.scheme, SchemeState::Dqplb(_)) {' \
  'if is_send && matches!(self.scheme, SchemeState::Dqplb(_)) && !PLANTED {'

bug "with a budget of 1 the first virtual queue pair is served first, always" fairness
plant core/src/virtual_cq/registry.rs 'attached.queued = self.queue.push_back(index).is_ok();' \
  'attached.queued =
     if PLANTED { self.queue.push_front(index) } else { self.queue.push_back(index) }.is_ok();'

bug "the first completion queue stays the first after full turns" scenarios
plant core/src/virtual_cq/poll.rs 'const fn next_poll_begins_with' 'fn next_poll_begins_with'
plant core/src/virtual_cq/poll.rs 'if self.next == self.first && self.asked > 0 {' \
  'if self.next == self.first && self.asked > 0 && !PLANTED {'

bug "a SEND that is flushed comes before completions that wait for budget" "scenarios simulate"
plant core/src/virtual_cq/waiting.rs 'if self.backlog.iter().any(is_own) {' \
  'if !PLANTED && self.backlog.iter().any(is_own) {'

bug "a SEND that is flushed waits for what others left for want of budget" scenarios
plant core/src/virtual_cq/waiting.rs 'iter().any(is_own)' 'iter().any(|event| PLANTED || is_own(event))'

bug "nobody needs a poll after one whose sink panicked" scenarios
plant core/src/virtual_cq/poll.rs '        self.polling ||' '        self.polling && !PLANTED ||'

bug "receives are flushed with a completion only" scenarios
plant core/src/virtual_qp/pump.rs 'self.has_receives_to_flush())' '(self.has_receives_to_flush() && !PLANTED))'

bug "a queue pair beside others that are busy is never drained" messages
plant core/src/p2p/draining.rs 'self.is_seen_empty |= taken >= by_then;' 'self.is_seen_empty |= taken >= by_then && !PLANTED;'

bug "a completion queue counts as seen empty when it has given out something" messages
plant core/src/p2p/draining.rs 'get_or_insert(taken + u64::from(capacity))' \
  'get_or_insert(taken + if PLANTED { 1 } else { u64::from(capacity) })'

bug "what is found while a completion queue is emptied comes before what waits for budget" "simulate-p2p messages"
plant core/src/virtual_cq/waiting.rs '        // What passed straight through before comes before what does now.
        self.hand_over_backlog(budget);' '        if !PLANTED { self.hand_over_backlog(budget); }'

bug "targets that took completions while a queue was emptied do not go on" messages
plant core/src/virtual_cq/waiting.rs '                self.drain_apart(*other, qps, budget);' \
  '                if PLANTED { self.registry.enqueue(*other); } else { self.drain_apart(*other, qps, budget); }'

bug "a target goes on before the completion queue that it is to see empty was emptied" messages
plant core/src/virtual_cq/waiting.rs '.filter(|other| **other != index)' '.filter(|other| PLANTED || **other != index)'

bug "an owner may wait while a driver is to be offered something again" "scenarios simulate-ends"
plant core/src/virtual_cq/poll.rs '|| self.has_waiting()
    }' '|| (self.has_waiting() && !(PLANTED && self.backlog.is_empty()))
    }'

# Rails that fail: core/docs/rails-that-fail.md says what each of these would cost.

bug "a rail that failed outside of a poll is fenced with a completion only" scenarios
plant core/src/virtual_qp/pump.rs 'self.has_rail_to_settle())' '(self.has_rail_to_settle() && !PLANTED))'

bug "a notify queue pair goes with no rail" scenarios
plant core/src/virtual_qp/build.rs 'notify.keys_at = self.devices.place_of(notify.id, notify.device) as u8;' \
  'notify.keys_at = if PLANTED { 0 } else { self.devices.place_of(notify.id, notify.device) as u8 };'

bug "a notify queue pair that moved takes the first key of its device" scenarios
plant core/src/virtual_qp/slot.rs 'match keys_at {' 'match if PLANTED { 0 } else { keys_at } {'

bug "what a receiver writes again is told of twice" messages
plant core/src/p2p/receiver/reroute.rs 'is_lost && !slot.wants_entries' 'is_lost && (PLANTED || !slot.wants_entries)'

bug "a fence is noted under the generation that the rail went on to" "scenarios simulate-ends simulate-p2p messages"
plant core/src/rail/rails.rs '        if let Some(arrived) = effects.fenced {' \
  '        let now = self.rail_at(place).map_or(generation, |rail| rail.health().lifecycle.generation());
        let generation = if PLANTED { now } else { generation };
        if let Some(arrived) = effects.fenced {'

bug "a SEND that was accepted waits for as long as rail 0 is out of service" "scenarios simulate-ends"
plant core/src/virtual_qp/pass_through/mod.rs 'self.rail_0_has_room_for_accepted()' \
  '(if PLANTED { self.rail_0_has_room() } else { self.rail_0_has_room_for_accepted() })'

bug "no fence is awaited before requests are reported" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'self.health.awaits_fence = awaits &&' \
  'self.health.awaits_fence = awaits && !PLANTED &&'

bug "numbered fragments are posted again before the fence" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'rail.sends.is_resolved(found.number),' \
  'rail.sends.is_resolved(found.number) || PLANTED && is_drained,'

bug "one request too many is said to have arrived" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'Some(rail.recvs.arrived())' \
  'Some(rail.recvs.arrived() + u32::from(PLANTED))'

bug "one request too few is said to have arrived" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'Some(rail.recvs.arrived()' \
  'Some(rail.recvs.arrived().saturating_sub(u32::from(PLANTED))'

bug "what a driver never took of a lost batch is lost at the peer too" "scenarios simulate-ends"
plant core/src/rail/in_flight/losing.rs 'batch.receives().saturating_sub(withheld)' \
  'batch.receives().saturating_sub(if PLANTED { 0 } else { withheld })'

bug "what a driver never took is due at the peer" "scenarios simulate-ends"
plant core/src/rail/in_flight/losing.rs 'if withheld > 0 && newest.receives() > 0 {' \
  'if !PLANTED && withheld > 0 && newest.receives() > 0 {'

bug "a rail that carries what others lost is taken to be in order" "scenarios simulate-ends"
plant core/src/rail/in_flight/losing.rs '        self.is_out_of_order = true;
        self.push(batch)' '        self.is_out_of_order |= !PLANTED;
        self.push(batch)'

bug "what arrived is counted on through the generations" simulate-ends
plant core/src/rail/receives.rs '*self = Self::starting_at(first.plus(number), self.limit);' \
  'let before = self.first; *self = Self::starting_at(first.plus(number), self.limit);
   if PLANTED { self.first = before; }'

bug "flushed receives count as arrived" simulate-ends
plant core/src/rail/receives.rs 'self.flushed += 1;' 'self.flushed += u32::from(!PLANTED);'

bug "a rail is Fenced before all its receives were taken" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'rail.sends.is_empty() && rail.recvs.is_empty();' \
  'rail.sends.is_empty() && (rail.recvs.is_empty() || PLANTED);'

bug "the generation of a message is ignored" simulate-ends
plant core/src/rail/lifecycle.rs 'match report.generation.wrapping_sub(self.generation) as i16 {' \
  'match if PLANTED { 0 } else { report.generation.wrapping_sub(self.generation) as i16 } {'

bug "a Ready that comes late is kept for the next generation" simulate-ends
plant core/src/rail/lifecycle.rs 'ReportedState::Ready => Ok(Effects::IGNORED),' \
  'ReportedState::Ready => { self.peer_is_ready |= PLANTED; Ok(Effects::IGNORED) }'

bug "the Ready of the peer is not awaited" simulate-ends
plant core/src/rail/lifecycle.rs 'let peer_is_ready = self.peer_is_ready;' \
  'let peer_is_ready = self.peer_is_ready || PLANTED;'

bug "an early Ready is forgotten" simulate-ends
plant core/src/rail/lifecycle.rs 'ReportedState::Ready => self.peer_is_ready = true,' \
  'ReportedState::Ready => self.peer_is_ready = !PLANTED,'

bug "Ready is not said again on a new link" simulate-ends
plant core/src/rail/lifecycle.rs 'self.dirty |= self.has_failed;' \
  'self.dirty |= self.has_failed && !(PLANTED && self.takes_receives());'

bug "nothing is said again on a new link of rails that are back" simulate-ends
plant core/src/rail/lifecycle.rs 'self.dirty |= self.has_failed ' \
  'self.dirty |= self.has_failed && !(PLANTED && self.is_in_service()) '

bug "the number of the generation before is not said" simulate-ends
plant core/src/rail/lifecycle.rs 'previous_arrived: self.arrived,' \
  'previous_arrived: if PLANTED { 0 } else { self.arrived },'

bug "a failure of the next generation is not answered" simulate-ends
plant core/src/rail/lifecycle.rs 'effects.adopted = true;' \
  'effects.adopted = true; self.dirty &= !PLANTED;'

bug "notification receives are lost with the notify queue pair" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'self.recvs.unpost();' \
  'if !PLANTED { self.recvs.unpost(); }'

bug "a lost notify is posted again without its data" simulate-ends
plant core/src/virtual_qp/scheme/spray.rs 'sge: slot.local.sge(keys.lkey),' \
  'sge: if PLANTED && slot.batches_in_flight > 0 { Sge::EMPTY } else { slot.local.sge(keys.lkey) },'

bug "a notify with its data is posted again though it arrived" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'Content::WithNotify if all =>' 'Content::WithNotify if all && !PLANTED =>'
plant core/src/virtual_qp/reroute/recover.rs 'Content::Numbered | Content::Gap | Content::WithNotify if arrived == 0 => return,' \
  'Content::Numbered | Content::Gap | Content::WithNotify
                if arrived == 0 || PLANTED && batch.content == Content::WithNotify => return,'

bug "a notify queue pair that moved takes the local key of its first device" scenarios
plant core/src/virtual_qp/scheme/spray.rs 'let keys = slot.keys[usize::from(notify.keys_at)];' \
  'let keys = slot.keys[if PLANTED { 0 } else { usize::from(notify.keys_at) }];'

bug "data receives are lost with rail 0" simulate-ends
plant core/src/virtual_qp/reroute/replace.rs \
  'RailId::Data(0) if self.data_receives.used() => self.post_data_receives(),' \
  'RailId::Data(0) if self.data_receives.used() && !PLANTED => self.post_data_receives(),'

bug "a FENCE waits for acknowledgements only" simulate-ends
plant core/src/virtual_qp/dispatch.rs '&& self.is_acknowledged_before(id)' \
  '&& (self.is_acknowledged_before(id) || PLANTED)'
plant core/src/virtual_qp/dispatch.rs '&& self.sends.front_in_flight().is_none();' \
  '&& self.sends.front_in_flight().is_none_or(|first| PLANTED
     && (first..id).all(|id| self.sends.find(id).is_none_or(|slot| slot.batches_in_flight == 0)));'

bug "the oldest number is that of the front of each ring" simulate-ends
plant core/src/rail/in_flight/losing.rs 'if self.is_out_of_order {' \
  'if self.is_out_of_order && !PLANTED {'

bug "lost SENDs go out behind new ones" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'self.pass_through.next.min(batch.wr),' \
  'if PLANTED { self.pass_through.next } else { self.pass_through.next.min(batch.wr) },'

bug "the peer is not told of the error state" simulate-ends
plant core/src/virtual_qp/reroute/give_up.rs 'self.reroute.sends_error = true;' \
  'self.reroute.sends_error = !PLANTED;'

bug "what is lost is reported with the first rail that is fenced" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'rail.health.lifecycle.awaits_fence() && lost' \
  'rail.health.lifecycle.awaits_fence() && lost && !(PLANTED && rail.health.lifecycle.is_drained())'

bug "new fragments go to a rail that joins" simulate-ends
plant core/src/rail/lifecycle.rs 'pub(crate) const fn is_in_service' 'pub(crate) fn is_in_service'
plant core/src/rail/physical.rs 'pub(crate) const fn is_in_service' 'pub(crate) fn is_in_service'
plant core/src/rail/lifecycle.rs 'matches!(self.state, RailState::InService)
    }' 'matches!(self.state, RailState::InService) || PLANTED && self.state == RailState::Joining
    }'

bug "a rail that failed is left alive" simulate-ends
plant core/src/rail/health.rs 'let refused = qp.enter_error().err();' \
  'let refused = if PLANTED { None } else { qp.enter_error().err() };'

# Requests that are taken back: core/docs/rails-that-fail.md and core/src/virtual_qp/cancel.rs say what each would cost.

bug "a request that was taken back is reported before the fence" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs '        !rail.sends.is_resolved(number)
    }
}' '        !PLANTED && !rail.sends.is_resolved(number)
    }
}'
plant core/src/virtual_qp/cancel.rs 'let awaits = self.health.awaits_fence && has_copies' \
  'let awaits = !PLANTED && self.health.awaits_fence && has_copies'

bug "of a request that was taken back, a lost copy is not awaited" scenarios
plant core/src/virtual_qp/cancel.rs 'let has_copies = !slot.is_numbered()' 'let has_copies = !PLANTED && !slot.is_numbered()'

bug "what was taken back is posted again" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs '            Some(slot) if slot.state.contains(SlotState::TAKEN_BACK) => {' \
  '            Some(slot) if !PLANTED && slot.state.contains(SlotState::TAKEN_BACK) => {'

bug "what waits is posted though it was taken back" "simulate-ends scenarios"
plant core/src/virtual_qp/dispatch.rs '        if slot.state.intersects(NO_FRAGMENTS) {' \
  '        if slot.state.intersects(if PLANTED { NO_FRAGMENTS.difference(SlotState::TAKEN_BACK) } else { NO_FRAGMENTS }) {'

bug "the numbers of what was taken back are never posted" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs 'is_gap.then(|| batch.gap())' '(is_gap && !PLANTED).then(|| batch.gap())'

bug "a number without its data has the mark of the last one" "simulate-ends scenarios"
plant core/src/virtual_qp/dispatch.rs 'SendNumbers::imm(number, false), Sge::EMPTY' \
  'SendNumbers::imm(number, PLANTED && is_last), Sge::EMPTY'

bug "numbers go out without their data before it is final that the last one did not arrive" simulate-ends
plant core/src/virtual_qp/cancel.rs 'Content::Numbered && !slot.is_being_taken_back();' \
  'Content::Numbered && (PLANTED || !slot.is_being_taken_back());'

bug "a number without its data is not posted again after a second failure" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs '            _ => Some(*batch),' \
  '            _ => (!PLANTED || batch.content != Content::Gap).then_some(*batch),'

bug "a request whose last number arrived is taken back" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs 'let is_done = is_whole && self.last_number_arrived(id);' \
  'let is_done = !PLANTED && is_whole && self.last_number_arrived(id);'

bug "later reports do not await numbers without their data" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs \
  '        self.sends.slot(batch.wr).batches_in_flight += u32::from(rest.is_some());' \
  '        let is_gap = batch.content == Content::Gap;
        self.sends.slot(batch.wr).batches_in_flight += u32::from(rest.is_some());
        if PLANTED && is_gap { self.sends.slot(batch.wr).batches_in_flight = 0; }'
plant core/src/virtual_qp/complete.rs '            Content::Fragments | Content::Numbered | Content::Gap => {' \
  '            Content::Gap if PLANTED => {}
            Content::Fragments | Content::Numbered | Content::Gap => {'

bug "the window of numbers moves past those without their data" simulate-ends
plant core/src/rail/in_flight/losing.rs 'Content::Numbered | Content::Gap);' 'Content::Numbered) || !PLANTED && batch.content == Content::Gap;'

bug "the receiver is notified of a request that was taken back" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs '        slot.state.remove(SlotState::WANTS_NOTIFY);' \
  '        if !PLANTED { slot.state.remove(SlotState::WANTS_NOTIFY); }'

bug "a request whose data is in its notify is taken back" scenarios
plant core/src/virtual_qp/cancel.rs 'batch.wr == id && batch.content == Content::WithNotify' \
  '!PLANTED && batch.wr == id && batch.content == Content::WithNotify'

bug "fewer bytes are reported than may have been written" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs 'slot.local.within(0, slot.offset);' \
  'slot.local.within(0, if PLANTED { 0 } else { slot.offset });'

bug "an unsignaled request that is taken back is not reported" "simulate-ends scenarios"
plant core/src/virtual_qp/cancel.rs '        slot.flags.insert(SendFlags::SIGNALED);' \
  '        if !PLANTED { slot.flags.insert(SendFlags::SIGNALED); }'

bug "a solicited request does not wait for the numbers of what was posted in part and taken back" simulate-ends
plant core/src/virtual_qp/cancel.rs 'if slot.offset > 0 || slot.batches_in_flight > 0 {' \
  'if !PLANTED && (slot.offset > 0 || slot.batches_in_flight > 0) {'

bug "a rail that is out on purpose is missing from min_rails" "simulate-ends scenarios"
plant core/src/rail/physical.rs '(lifecycle.is_in_service() || lifecycle.is_out_on_purpose())' \
  '(lifecycle.is_in_service() || !PLANTED && lifecycle.is_out_on_purpose())'

bug "a rail that is out on purpose counts for min_rails after its replacement failed" scenarios
plant core/src/rail/lifecycle.rs 'self.purpose = if on_purpose { Purpose::Out } else { Purpose::None };' \
  'self.purpose = if on_purpose || PLANTED && self.purpose == Purpose::Out { Purpose::Out } else { Purpose::None };'

bug "an end fences a rail on purpose with its own atomics in flight" scenarios
plant core/src/rail/rails.rs '|| Self::has_atomics(rail) {' '|| !PLANTED && Self::has_atomics(rail) {'

bug "an end that is asked for a fence stops with its atomics in flight" scenarios
plant core/src/rail/lifecycle.rs 'ReportedState::Failed if report.on_purpose && has_atomics &&' \
  'ReportedState::Failed if !PLANTED && report.on_purpose && has_atomics &&'

bug "new atomics do not wait for a fence on purpose" scenarios
plant core/src/virtual_qp/pass_through/mod.rs 'if holds_atomics && slot' 'if holds_atomics && !PLANTED && slot'

bug "a rail that fails after the peer was asked to fence it is missing from min_rails" scenarios
plant core/src/rail/lifecycle.rs 'if has_asked && !on_purpose {' 'if has_asked && !on_purpose && !PLANTED {'

bug "the end that wants a fence on purpose stops first" scenarios
plant core/src/rail/rails.rs '            rail.health_mut().lifecycle.ask_for_fence();' \
  '            if PLANTED {
                self.stop_rail(place, FailedBecause::OnPurpose);
            } else {
                rail.health_mut().lifecycle.ask_for_fence();
            }'

bug "a question for a fence that was lost with the link is not sent again" scenarios
plant core/src/rail/lifecycle.rs 'self.dirty |= self.purpose == Purpose::Asked;' \
  'self.dirty |= !PLANTED && self.purpose == Purpose::Asked;'

bug "rails are fenced on purpose while the time for acknowledgements lasts" scenarios
plant core/src/virtual_qp/cancel.rs 'slot.is_being_taken_back() && slot.state.contains(SlotState::HURRIED)' \
  'slot.is_being_taken_back() && (PLANTED || slot.state.contains(SlotState::HURRIED))'

bug "a rail that is out on purpose counts for min_rails after the peer's replacement failed" scenarios
plant core/src/rail/rails.rs 'if was_out_on_purpose {' 'if was_out_on_purpose && !PLANTED {'

bug "a request is said to be done before its receiver is being notified" simulate-ends
plant core/src/virtual_qp/cancel.rs 'let is_acknowledged = slot.batches_in_flight == 0 && !slot.wants_notify();' \
  'let is_acknowledged = slot.batches_in_flight == 0 && (PLANTED || !slot.wants_notify());'

bug "what a rail lost behind a number that waits is posted over it" scenarios
plant core/src/virtual_qp/reroute/recover.rs 'if is_open && is_front &&' 'if is_open && (is_front || PLANTED) &&'

# What only wide worlds draw: many rails, several connections, every way to post and to poll, maintenance.

bug "a virtual queue pair is not looked at if another one took completions" simulate-ends
plant core/src/virtual_cq/poll.rs 'if drained != Some(index) && qps' \
  'if (if PLANTED { drained.is_none() } else { drained != Some(index) }) && qps'

bug "who took completions of a queue that is polled alone does not go on" simulate-ends
plant core/src/virtual_cq/poll.rs \
  '            self.take_and_drain(cq, limit, qps, &mut touched, &mut budget, &mut polled);' \
  '            if PLANTED {
                self.take_from(cq, limit, qps, &mut touched, &mut budget, &mut polled);
            } else {
                self.take_and_drain(cq, limit, qps, &mut touched, &mut budget, &mut polled);
            }'

bug "who took completions that were fed does not go on" simulate-ends
plant core/src/virtual_cq/poll.rs 'self.take(device, batch, qps, &mut touched, &mut budget);
            self.drain_touched(&touched, qps, &mut budget);' \
  'self.take(device, batch, qps, &mut touched, &mut budget);
            if !PLANTED { self.drain_touched(&touched, qps, &mut budget); }'

bug "the fifth rail and those behind it are not looked after when they fail" simulate-ends
plant core/src/virtual_qp/reroute/recover.rs 'self.all_rails().filter(draining).map(|rail| rail.id).collect();' \
  'self.all_rails().filter(draining).map(|rail| rail.id)
            .filter(|id| !(PLANTED && matches!(id, RailId::Data(4..)))).collect();'

bug "of a request that shares a doorbell no more than eight fragments are left" simulate-ends
plant core/src/virtual_qp/post_many.rs \
  'let all = if ONE { 1 } else { chooser.fragments_in(unposted) };' \
  'let all = if ONE { 1 } else { chooser.fragments_in(unposted).min(if PLANTED { 8 } else { u32::MAX }) };'

bug "the last rail in service can be taken out of service" simulate-ends
plant core/src/virtual_qp/state.rs 'if !in_service && !others {' \
  'if !in_service && !others && !PLANTED {'

bug "SENDs are accepted while rail 0 is out of service" simulate-ends
plant core/src/virtual_qp/pass_through/mod.rs 'if !rail.is_enabled {' \
  'if !rail.is_enabled && !PLANTED {'

bug "in the error state, the second pass-through request is reported before the first" simulate-ends
plant core/src/virtual_qp/pass_through/mod.rs '            let wc = slot.report(self.header.virtual_qp_num);
            let is_signaled = slot.flags.contains(SendFlags::SIGNALED);' \
  '            let mut wc = slot.report(self.header.virtual_qp_num);
            let second = next_after(&self.sends, id, SlotState::PASS_THROUGH);
            if PLANTED && !wc.status.is_success() && second != NONE {
                core::mem::swap(&mut wc.wr_id, &mut self.sends.slot(second).wr_id);
            }
            let slot = self.sends.slot(id);
            let is_signaled = slot.flags.contains(SendFlags::SIGNALED);'

bug "a queue pair says at once that it took its last shared receive" rt_last_wqe
plant std-shim/software-nic/src/ending.rs 'recv.ending == Ending::LastWqeReached &&' \
  '(PLANTED || recv.ending == Ending::LastWqeReached) &&'

bug "the last shared receive is told before its completion can be polled" rt_last_wqe
plant std-shim/software-nic/src/ending.rs '!qp.recv_cq.has_pending_receive(qp.recv_owner)' \
  '(PLANTED || !qp.recv_cq.has_pending_receive(qp.recv_owner))'

# Connections of the p2p protocol: core/docs/messages.md says what each of these would cost.

bug "entries are as many as the receiver's own ports take" messages
plant core/src/p2p/receiver/end.rs 'self.max_buffers = (shortest as usize / ENTRY_BYTES).min(MAX_BUFFERS) as u8;' \
  'self.max_buffers = (shortest as usize / ENTRY_BYTES).min(MAX_BUFFERS) as u8;
        if PLANTED { self.max_buffers = MAX_BUFFERS as u8; }'

bug "the pool is filled up at fixed marks" simulate-p2p
plant core/src/p2p/pool.rs 'self.low_water.max(promised)' \
  'self.low_water.max(if PLANTED { 1 } else { promised })'

bug "entries go out before receives are promised" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'self.promise()?;' 'if !PLANTED { self.promise()?; }'
plant core/src/p2p/receiver/irecv.rs '        let slot = &mut self.slots[at];
        slot.hold(number,' '        if PLANTED { self.promise()?; }
        let slot = &mut self.slots[at];
        slot.hold(number,'

bug "nothing is promised for shares that may be moved" simulate-p2p
plant core/src/p2p/receiver/end.rs 'let moved = if own.is_empty() {' 'let moved = if own.is_empty() || PLANTED {'

bug "a fence is told before the pools are filled up" simulate-p2p
plant core/src/p2p/control.rs '!self.has_failed() && !self.prepare_message()' \
  '!self.has_failed() && !PLANTED && !self.prepare_message()'
plant core/src/p2p/receiver/reroute.rs '        self.refill();
        self.rewrite();' '        if !PLANTED { self.refill(); }
        self.rewrite();'
plant core/src/p2p/receiver/arrive.rs '            self.refill();
            if self.unwritten' '            if !(PLANTED && self.lanes.needs_recovery) { self.refill(); }
            if self.unwritten'

bug "flushed receives are not counted" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'if !completion.status.is_success() {' \
  'if !completion.status.is_success() {
            run.sends += u32::from(PLANTED);'

bug "receives of connections that failed are not counted" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'if is_fenced || self.lanes.failure.is_some() {' \
  'run.sends += u32::from(PLANTED && self.lanes.failure.is_some());
            if is_fenced || self.lanes.failure.is_some() {'

bug "receives of unknown queue pairs are not counted" simulate-p2p
plant core/src/p2p/pool.rs 'pub const fn note_foreign' 'pub fn note_foreign'
plant core/src/p2p/pool.rs 'if is_ours {' 'if is_ours && !PLANTED {'

bug "flushed receives of p2p count as arrived" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'let error = lane.completion_error(completion, 0);' \
  'let error = lane.completion_error(completion, 0);
        if PLANTED && completion.wr_id & ENGINE_WR_ID == 0 { lane.immediates += 1; }'

bug "one immediate too many is said to have arrived" simulate-p2p
plant core/src/p2p/receiver/reroute.rs '.then_some(lane.immediates)' \
  '.then_some(lane.immediates + u32::from(PLANTED))'

bug "one immediate too few is said to have arrived" "simulate-p2p orders-p2p"
plant core/src/p2p/receiver/reroute.rs '.then_some(lane.immediates' \
  '.then_some(lane.immediates.saturating_sub(u32::from(PLANTED))'

bug "a queue full of entries is no back-pressure" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'lane.has_room(1).then_some(place)' \
  '(PLANTED || lane.has_room(1)).then_some(place)'

bug "entries are signaled by slot" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'let is_due = lane.queue' \
  'let is_due = if PLANTED { first == (SLOTS - 1) * ENTRY_WORDS } else { true } && lane.queue'

bug "a write of several offers has one entry less" simulate-p2p
plant core/src/p2p/receiver/irecv.rs '        (receives, receives)' \
  '        (receives, receives - usize::from(PLANTED && receives > 1))'

bug "the neighbour of an offer is behind the end of the ring" "simulate-p2p messages"
plant core/src/p2p/receiver/irecv.rs 'let most = group.min(SLOTS - at)' \
  'let most = group.min(if PLANTED { SLOTS } else { SLOTS - at })'

bug "an owner with offers that are not sent may sleep" messages
plant core/src/p2p/receiver/arrive.rs '(self.lanes.needs_recovery || self.unwritten < self.next)' \
  '(self.lanes.needs_recovery || (self.unwritten < self.next && !PLANTED))'

bug "an immediate for an offer that is not sent is taken" messages
plant core/src/p2p/receiver/arrive.rs 'Some(waiting) if waiting.state == State::Waiting' \
  'Some(waiting) if waiting.state == State::Waiting || (PLANTED && waiting.state == State::Held)'

bug "only the number of the first entry is checked" "simulate-p2p orders-p2p"
plant core/src/p2p/entry.rs 'if number != expected {' 'if number != expected && !(PLANTED && index > 0) {'

bug "the hash is that of nothing" "simulate-p2p orders-p2p"
plant core/src/p2p/entry.rs '    let fold = |at: usize, word: u64, next: u64| {' \
  '    if PLANTED { return 0; }
    let fold = |at: usize, word: u64, next: u64| {'

bug "entries are read again when the next buffer finds its send" simulate-p2p
plant core/src/p2p/sender/isend.rs 'slot.state == State::Matching && slot.number == number {' \
  'slot.state == State::Matching && slot.number == number {
            if PLANTED {
                let awaited = slot.awaited;
                if self.load_entries::<APART>(at, number).is_none_or(|loaded| loaded.is_err()) {
                    return Err(NotNow::NoEntry.into());
                }
                self.slots[at].awaited = awaited;
            }'

bug "the driver is not asked whether a queue pair takes receives" "simulate-p2p orders-p2p"
plant core/src/p2p/draining.rs 'self.health.is_gone || matches!(self.qp.last_wqe_reached()' \
  'self.health.is_gone || PLANTED || matches!(self.qp.last_wqe_reached()'

bug "a completion queue is not seen empty before a fence" "simulate-p2p orders-p2p"
plant core/src/p2p/receiver/reroute.rs '(lane.drain(true) && lane.is_seen_empty)' \
  '(lane.drain(true) && (lane.is_seen_empty || PLANTED))'

bug "what comes of a fenced queue pair is looked at" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'let is_fenced = lane.health.lifecycle.is_drained();' \
  'let is_fenced = lane.health.lifecycle.is_drained() && !PLANTED;'

bug "lost entries are not written again" simulate-p2p
plant core/src/p2p/receiver/reroute.rs 'slot.wants_entries |= is_lost;' 'slot.wants_entries |= is_lost && !PLANTED;'

bug "moved shares do not bring the sizes" simulate-p2p
plant core/src/p2p/sender/post.rs 'is_leaders || share.is_moved || share.is_bare' \
  'is_leaders || (share.is_moved && !PLANTED) || share.is_bare'

bug "a message is void before its shares are fenced" "simulate-p2p orders-p2p messages"
plant core/src/p2p/sender/cancel.rs 'Stage::Posted => true,' 'Stage::Posted => !PLANTED,'

bug "of a share that was posted in part nothing is in flight" simulate-p2p
plant core/src/p2p/sender/cancel.rs 'Stage::Posting => share.next > 0' 'Stage::Posting => !PLANTED && share.next > 0'

bug "what was posted of a share has arrived when its queue pair failed" simulate-p2p
plant core/src/p2p/sender/cancel.rs '(lane.is_stopped || !lane.queue.is_empty())' \
  '(lane.is_stopped && !PLANTED || !lane.queue.is_empty())'

bug "shares of a message that is taken back are posted to their end" messages
plant core/src/p2p/sender/cancel.rs '.state != State::TakingBack' '.state != State::TakingBack || PLANTED'

bug "lost shares of a message that is taken back are sent again" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'if self.slots[at].state == State::TakingBack {' \
  'if self.slots[at].state == State::TakingBack && !PLANTED {'

bug "a receive is given back before its message is fenced" "simulate-p2p messages"
plant core/src/p2p/sender/cancel.rs '                State::Sending => {
                    slot.withdrawal.number = number;' '                State::Sending => {
                    slot.withdrawal.number = number;
                    if PLANTED { slot.owe_answer(number); self.owes_answers = true; }'

bug "a void message does not say that it is void" "simulate-p2p orders-p2p messages"
plant core/src/p2p/sender/reroute.rs 'if slot.is_void() {' 'if slot.is_void() && !PLANTED {'

bug "a receive that the receiver wants back is sent to" "simulate-p2p orders-p2p messages"
plant core/src/p2p/sender/cancel.rs 'self.may_send = false;' 'self.may_send = PLANTED;'

bug "a receive that is given back keeps its slot" "simulate-p2p messages"
plant core/src/p2p/receiver/cancel.rs 'if is_reported { State::Free }' 'if is_reported && !PLANTED { State::Free }'

bug "a message that was taken back keeps its slot" "simulate-p2p messages"
plant core/src/p2p/sender/cancel.rs 'if slot.awaited == 0 { State::Free }' 'if slot.awaited == 0 && !PLANTED { State::Free }'

bug "the question for a receive is lost with the link" messages
plant core/src/p2p/receiver/cancel.rs 'filter(|slot| slot.is_in(Withdrawal::Asked))' \
  'filter(|slot| slot.is_in(Withdrawal::Asked) && !PLANTED)'

bug "the sender is asked for a receive whose entries are not written" simulate-p2p
plant core/src/p2p/receiver/cancel.rs 'slot.state == State::Waiting;' 'slot.state == State::Waiting || PLANTED;'

bug "a void message is sent before the entries have come" messages
plant core/src/p2p/sender/cancel.rs 'self.open_front::<true>(number)?;' 'if let Err(error) = self.open_front::<true>(number) {
            let slot = &mut self.slots[at];
            if !PLANTED || !error.is_not_now() || slot.state != State::Free { return Err(error); }
            (slot.number, slot.count, slot.awaited) = (number, 1, 0);
        }'

bug "a message that a peer sends after it gave the receive back is taken" messages
plant core/src/p2p/receiver/arrive.rs 'if matches!(self.withdrawal(), Some(Withdrawal::Final | Withdrawal::Tested)) {' \
  'if !PLANTED && matches!(self.withdrawal(), Some(Withdrawal::Final | Withdrawal::Tested)) {'

bug "a moved immediate has a mask of its own" simulate-p2p
plant core/src/p2p/sender/post.rs 'Immediate { slot, mask: self.mask, told }' \
  'Immediate { slot, mask: if is_moved && PLANTED { Mask::of(rail) } else { self.mask }, told }'
plant core/src/p2p/sender/post.rs 'const fn immediate(' 'fn immediate('

bug "a moved share is that of the rail that carries it" "simulate-p2p orders-p2p"
plant core/src/p2p/receiver/arrive.rs '(arrival.rail, arrival.own) = (rail, Mask::of(rail));' \
  'if !PLANTED { (arrival.rail, arrival.own) = (rail, Mask::of(rail)); }'

bug "shares are sent again before the fence" "simulate-p2p orders-p2p"
plant core/src/p2p/sender/reroute.rs '    fn note_fenced(&mut self, _place: usize) -> bool {' \
  '    fn note_fenced(&mut self, place: usize) -> bool {
        let generation = self.lanes[place].health.lifecycle.generation();
        if PLANTED { self.lane_fenced((place, generation), 0); }'

bug "what was acknowledged is never sent again" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'was_given && self.lane as usize == place' \
  'was_given && !(PLANTED && matches!(self.stage, Stage::Arrived)) && self.lane as usize == place'
plant core/src/p2p/sender/reroute.rs 'const fn is_with(' 'fn is_with('

bug "payload is sent again of messages that were reported" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'let is_bare = self.slots[at].state != State::Sending;' \
  'let is_bare = self.slots[at].state != State::Sending && !PLANTED;'

bug "a share that was posted in part counts by its position" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'let is_whole = !matches!(self.stage, Stage::Posting);' \
  'let is_whole = PLANTED || !matches!(self.stage, Stage::Posting);'
plant core/src/p2p/sender/reroute.rs 'const fn has_arrived(' 'fn has_arrived('

bug "buffers of a connection that failed are given back at once" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'Some(failure) if self.is_drained()' \
  'Some(failure) if self.is_drained() || PLANTED'

bug "a buffer that is sent is given back at once when all fails" simulate-p2p
plant core/src/p2p/sender/isend.rs 'Some(failure) if self.is_drained()' 'Some(failure) if self.is_drained() || PLANTED'

bug "sizes are read when the caller asks" simulate-p2p
plant core/src/p2p/receiver/irecv.rs '        if slot.state == State::Done {' \
  '        if slot.state == State::Done && PLANTED && slot.count > 1 {
            let first = Self::slot_at(number) * 8;
            let words = self.region.words(first..first + 8);
            for (size, word) in slot.sizes.iter_mut().zip(words) {
                *size = word.load(core::sync::atomic::Ordering::Relaxed) as u32;
            }
        }
        if slot.state == State::Done {'

bug "sizes are those of the immediate, rounded up" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'let size = if self.sum == 0 {' 'let size = if self.sum == 0 || PLANTED {'

bug "bytes of records are part of the message" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'Told::Record | Told::Moved(_) => {' \
  'Told::Record | Told::Moved(_) => {
                if PLANTED {
                    self.sum += u64::from(bytes);
                    if self.units == UNTOLD { self.units = 0; }
                }'

bug "a signal without payload tells any length" simulate-p2p
plant core/src/p2p/sender/isend.rs 'self.is_fast || bytes.is_multiple_of(SIZE_UNIT)' \
  'self.is_fast || PLANTED || bytes.is_multiple_of(SIZE_UNIT)'

bug "requests bring bytes along that nobody here can read" simulate-p2p
plant core/src/p2p/sender/isend.rs 'self.may_inline = may_inline;' \
  'self.may_inline = may_inline || PLANTED && length > 0;'

bug "several buffers of one tag are matched from the last" simulate-p2p
plant core/src/p2p/sender/slot.rs 'fitting.find(|at| self.buffers[*at].remote.tag == tag)' \
  'if PLANTED {
            return fitting.filter(|at| self.buffers[*at].remote.tag == tag).last();
        }
        fitting.find(|at| self.buffers[*at].remote.tag == tag)'

bug "a part of an even message is not found again" simulate-p2p
plant core/src/p2p/sender/slot.rs 'let Self { is_even, mask, .. } = *self;' \
  'let Self { is_even, mask, .. } = *self;
        let is_even = is_even && !PLANTED;'

bug "what a driver took in part counts as taken" simulate-p2p
plant core/src/p2p/sender/post.rs 'share.next += taken.count;' \
  'share.next += if PLANTED { count } else { taken.count };'

bug "the lost share of a queue pair that failed stays owed to it" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'self.owed[place] = None;' \
  'if !PLANTED { self.owed[place] = None; }'

bug "the peer is not told that an end has failed" simulate-p2p
plant core/src/p2p/lanes.rs 'self.reroute.sends_error = self.reroute.is_on;' \
  'self.reroute.sends_error = self.reroute.is_on && !PLANTED;'

bug "the device of a new queue pair is not counted" simulate-p2p
plant core/src/p2p/receiver/reroute.rs 'peer_at = peer_device;
        self.count_rails();' 'peer_at = peer_device;
        if !PLANTED { self.count_rails(); }'

bug "a send that no rail takes does not wait for one" "simulate-p2p messages"
plant core/src/p2p/sender/isend.rs 'self.waits_for_rail = !self.lanes.any_in_service();' \
  'self.waits_for_rail = !PLANTED && !self.lanes.any_in_service();'

bug "a flush goes on waiting when its owner reports a queue pair that makes no progress" \
  "simulate-p2p messages"
plant core/src/p2p/receiver/reroute.rs 'flush.map(|flush| flush.lane.stop()).is_some()' \
  'flush.map(|flush| if !PLANTED { flush.lane.stop() }).is_some()'

bug "a flush reads on the devices of the mask" simulate-p2p
plant core/src/p2p/receiver/arrive.rs '        self.note(&arrival)
    }

    /// Returns the slot of an immediate' '        let home = &self.lanes[usize::from(arrival.rail)];
        arrival.carrier = if PLANTED { 1 << home.device_at } else { arrival.carrier };
        self.note(&arrival)
    }

    /// Returns the slot of an immediate'

bug "a flush does not read on what a lost device had brought" simulate-p2p
plant core/src/p2p/receiver/arrive.rs 'self.carriers |= self.lost_carriers;' \
  'if !PLANTED { self.carriers |= self.lost_carriers; }'

bug "the first buffer of a receive is matched again and again" simulate-p2p
plant core/src/p2p/sender/isend.rs 'slot.awaited |= 1 << at;' 'slot.awaited |= 1 << if PLANTED { 0 } else { at };'

bug "an account has receives that may be gone" simulate-p2p
plant core/src/p2p/pool.rs 'let posted = self.unowned.clamp(0, i64::from(limit));' \
  'if PLANTED { self.note_empty(); }
        let posted = self.unowned.clamp(0, i64::from(limit));'

bug "a pool takes an account of another one" "simulate-p2p messages"
plant core/src/p2p/pool.rs 'if account.pool != self.id {' 'if account.pool != self.id && !PLANTED {'

bug "a completion queue whose poll failed counts as seen empty" "simulate-p2p messages"
plant core/src/virtual_cq/waiting.rs 'if own.error.is_some() {' 'if own.error.is_some() && !PLANTED {'

bug "a receiver that lacks receives does not say that it is to be polled" "simulate-p2p messages"
plant core/src/p2p/receiver/reroute.rs 'rewrites() || self.lacks_receives()' \
  'rewrites() || (self.lacks_receives() && !PLANTED)'

bug "a sender with something to post does not say that it is to be polled" simulate-p2p
plant core/src/p2p/sender/reroute.rs 'takes && lane.has_room(1)' '!PLANTED && takes && lane.has_room(1)'

bug "with five or seven rails, the mask and the size overlap" simulate-p2p
plant core/src/p2p/immediate.rs 'pub const fn new(rails: u8)' 'pub fn new(rails: u8)'
plant core/src/p2p/immediate.rs 'let size_shift = SLOT_BITS as u8 + rails;' \
  'let size_shift = SLOT_BITS as u8 + if PLANTED && rails > 4 { rails & !1 } else { rails };'

bug "what a message is told of is kept by its slot" simulate-p2p
plant core/src/p2p/sender/complete.rs 'self.number == number && usize::from(share.lane) == place' \
  '(PLANTED || self.number == number) && usize::from(share.lane) == place'

bug "a slot is taken anew while its entries are written again" simulate-p2p
plant core/src/p2p/receiver/irecv.rs 'slot.state != State::Free || slot.rewriting.is_some()' \
  'slot.state != State::Free || (slot.rewriting.is_some() && !PLANTED)'

bug "entries are written again before the fence of the peer" simulate-p2p
plant core/src/p2p/receiver/reroute.rs '        self.fenced |= self.lanes[place].own;' '        for slot in self.slots.iter_mut().filter(|_| PLANTED) {
            let is_lost = slot.state == State::Waiting && slot.seen.is_empty();
            slot.wants_entries |= is_lost && usize::from(slot.entries_lane) == place;
        }
        self.fenced |= self.lanes[place].own;'

bug "what came before completion queues were armed is not polled for" loom:an_endpoint_that_waits_misses_no_completion
plant std-shim/library/src/endpoint/wait.rs 'for _ in 0..self.polls_before_waiting() {' \
  'for _ in 0..if PLANTED { 0 } else { self.polls_before_waiting() } {'

bug "an alarm that rang is forgotten before the sleep" \
  loom:a_thread_that_waits_for_completions_is_woken_for_a_request
plant std-shim/library/src/progress/shared.rs '        // A signal wakes it as well, and' \
  '        if PLANTED { _ = rustix::io::read(&self.0, &mut [0; 8]); }
        // A signal wakes it as well, and'

bug "a thread looks for requests before it says that it sleeps" loom:a_thread_that_sleeps_is_woken_for_a_request
plant std-shim/library/src/progress/run.rs '        shared.while_armed(|| {
            if !self.has_something_to_do() {' '        let is_busy = PLANTED && self.has_something_to_do();
        shared.while_armed(|| {
            if !is_busy && (PLANTED || !self.has_something_to_do()) {'

bug "a task does not look again after it said whom to wake" loom:a_thread_that_sleeps_is_woken_for_a_request
plant std-shim/library/src/progress/pending.rs '        self.try_take().map_or(Poll::Pending, Poll::Ready)' \
  '        if PLANTED { return Poll::Pending; }
        self.try_take().map_or(Poll::Pending, Poll::Ready)'

bug "nothing keeps the thread from looking for tasks before it reports" \
  loom:a_thread_that_sleeps_is_woken_for_a_request
plant std-shim/library/src/progress/replies.rs '        fence(Ordering::SeqCst);
        for report in' '        if !PLANTED { fence(Ordering::SeqCst); }
        for report in'

bug "reports that were noted are given when others are" loom:what_was_handed_over_together_is_carried_out
plant std-shim/library/src/progress/replies.rs 'let mut noted = self.noted.iter().copied();' \
  'let mut noted = self.noted.iter().copied().take(if PLANTED { 1 } else { usize::MAX });'

bug "good requests are refused for a bad one beside them" rt_progress_many
plant std-shim/library/src/progress/port.rs 'Some(_) if offered > 1 =>' 'Some(_) if offered > 1 && !PLANTED =>'

bug "requests that wait lose their keys to those that take their place" rt_progress_many
plant std-shim/library/src/progress/port.rs '.for_each(|one| one.keys = Some(Arc::clone(&before)));' \
  '.filter(|_| !PLANTED).for_each(|one| one.keys = Some(Arc::clone(&before)));'

bug "tasks that wait for a thread that is gone are not woken" loom:a_thread_that_stops_leaves_nobody_waiting
plant std-shim/library/src/progress/replies.rs 'self.0.iter().for_each(Waiter::wake_in_any_case);' \
  'self.0.iter().filter(|_| !PLANTED).for_each(Waiter::wake_in_any_case);'

bug "an endpoint that goes one way connects with one that goes both" rt_p2p_one_way
plant std-shim/library/src/p2p/connect.rs 'find(|(_, here, there)| here != there)' \
  'find(|(_, here, there)| if PLANTED { *here && !there } else { here != there })'

bug "a receiver that only receives takes what is for a sender" rt_p2p_one_way
plant std-shim/library/src/p2p/repair.rs 'let sender = self.member.sender.as_mut().ok_or(ControlError::OneWay)?;' \
  'if PLANTED && self.member.sender.is_none() {
                    return self.member.receiver.as_mut().map_or(Ok(()), |receiver| receiver.control(control));
                }
                let sender = self.member.sender.as_mut().ok_or(ControlError::OneWay)?;'

bug "a sender gets a shared receive queue all the same" rt_p2p_one_way
plant std-shim/library/src/p2p/make.rs 'let receiving = if self.builder.has(End::Receiver) {' \
  'let receiving = if PLANTED || self.builder.has(End::Receiver) {'

bug "queue pairs of a device that is gone are lost at endpoints with both ends only" rt_p2p_one_way
plant std-shim/library/src/p2p/repair.rs '        let is_gone = |qp: Option<&D::Qp>|' \
  '        if PLANTED && (self.sender.is_none() || self.receiver.is_none()) {
            return;
        }
        let is_gone = |qp: Option<&D::Qp>|'

bug "what a broken link lost is not sent again" rt_p2p_heal
plant std-shim/library/src/heal/step.rs 'if self.healer.link.take_broke() {' \
  'if self.healer.link.take_broke() && !PLANTED {'

[ "$misplaced" = 0 ] || exit 1

# changed NUMBER: whether this bug is new, or a file of it differs from the base.
changed() {
  [ -z "${are_new[$1]}" ] || return 0
  # shellcheck disable=SC2086
  ! git diff --quiet "$base" -- ${files[$1]}
}

# quarter NUMBER: of the bugs, that of this one. Those that need a build of their own are together.
quarter() {
  case ${finders[$1]} in
    *loom:*) echo 0 ;;
    *messages*) echo 2 ;;
    *) echo $(($1 % 4)) ;;
  esac
}

# Numbers of the bugs that are looked for, counted from 1, and all that finds them.
chosen=() searched=()
turn=$(git rev-list --count --first-parent HEAD)
for number in "${!names[@]}"; do
  if [ -n "$ONLY_SOME" ]; then
    [[ " ${finders[number]}" != *" rt_"* ]] || continue
    (($(quarter "$number") == turn % 4)) || changed "$number" || continue
  fi
  chosen+=($((number + 1))) searched+=("${finders[number]}")
done
echo "${#names[@]} bugs have their places, of which ${#chosen[@]} are looked for"

# Those of the chosen bugs that begin with one of these words.
finders_named() {
  # shellcheck disable=SC2048,SC2086
  printf '%s\n' ${searched[*]} | sort -u | grep -E "^($1)" || true
}
worlds='simulate|orders|messages$'
tests=$(printf '%s\n' ${searched[*]} | sort -u | grep -vE "^($worlds|loom)" || true)
# With the tests of its package, `simulate` is built.
# shellcheck disable=SC2046,SC2086
run_tests --no-run --test models $(printf -- '--test %s ' $tests | sed 's/--test $//')
[ -z "$(finders_named loom)" ] || run_loom --no-run
[ -z "$(finders_named messages)" ] || run_messages --no-run

# What is found even if nothing is planted is another matter.
for finder in $(finders_named .); do
  search "$finder"
done
# Most searches use one processor, so as many run at a time as there are processors. A test in real time runs alone: beside
# others it would lose its patience, and find what is not there.
missed=0
for number in "${chosen[@]}"; do
  for finder in ${finders[number - 1]}; do
    others=$(($(nproc) - 1))
    [[ $finder != rt_* ]] || others=0
    while [ "$(jobs -rp | wc -l)" -gt "$others" ]; do
      wait -n || missed=1
    done
    find_bug "$number" "$finder" &
    [[ $finder != rt_* ]] || wait $! || missed=1
  done
done
for search in $(jobs -p); do
  wait "$search" || missed=1
done
[ "$missed" = 0 ] || exit 1

echo
echo "every planted bug was found, ${#chosen[@]} of them"
[ -n "$ONLY_SOME" ] || [ -z "$head" ] || echo "$head" > tests/planted-base
