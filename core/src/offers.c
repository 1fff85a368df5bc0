/* SPDX-License-Identifier: Apache-2.0 */
#include "offers.h"

#include "control.h"
#include "lanes.h"
#include "snapshot.h"

/* What OFFER and CLAIM carry. */
struct words {
  uint64_t sandbox;
  uint32_t snapshot, owned;
  struct span record;
  bool has_record, has_owned;
};

static int
read_words(const struct frame *frame, struct words *words, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more;

  *words = (struct words){0};
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    bool again = (tag == RAMET_TAG_SANDBOX && words->sandbox) || (tag == RAMET_TAG_SNAPSHOT && words->snapshot) ||
                 (tag == RAMET_TAG_RECORD && words->has_record) || (tag == RAMET_TAG_OWNED && words->has_owned);
    bool bad = tag == RAMET_TAG_SANDBOX    ? span_u64(value, &words->sandbox) < 0
               : tag == RAMET_TAG_SNAPSHOT ? span_u32(value, &words->snapshot) < 0
               : tag == RAMET_TAG_OWNED    ? span_u32(value, &words->owned) < 0
                                           : tag != RAMET_TAG_RECORD;
    if (bad || again)
      return err_field(err, "payload", "tag %u of %u bytes does not belong here, or not twice", tag, value.length);
    if (tag == RAMET_TAG_RECORD) {
      words->record = value;
      words->has_record = true;
    }
    words->has_owned = words->has_owned || tag == RAMET_TAG_OWNED;
  }
  return more;
}

void
offer_over(struct sandbox *sandbox)
{
  for (int i = 0; i < STREAM_COUNT; i++)
    close_fd(&sandbox->offered[i]);
  sandbox->offered_count = 0;
  sandbox->offer = 0;
}

int
offer_make(struct frame *frame, struct err *err)
{
  static uint64_t last;
  struct words words;

  if (read_words(frame, &words, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(words.sandbox);
  if (!sandbox || sandbox->state != SANDBOX_STANDING || !sandbox->origin || sandbox->has_session)
    return err_code(err, "unknown_sandbox", "no fork of this number stands that could be offered");
  if (sandbox->offer || words.snapshot || words.has_record || words.has_owned)
    return err_field(err, "payload", "a sandbox is offered once, by its number alone");
  if (frame->fd_count < STREAM_CHANNEL || frame->fd_count > STREAM_COUNT)
    return err_field(err, "fds", "%d descriptors, where a command has 3 or 4 streams", frame->fd_count);
  sandbox->offered_count = frame->fd_count;
  for (int i = 0; i < sandbox->offered_count; i++)
    sandbox->offered[i] = frame_steal_fd(frame, (uint32_t)i);
  sandbox->offer = ++last;
  return 0;
}

static int
hold(struct sandbox *sandbox, struct frame *frame, struct err *err)
{
  if (frame->fd_count != 0 && frame->fd_count != STREAM_CHANNEL && frame->fd_count != STREAM_COUNT)
    return err_field(err, "fds", "%d descriptors, where a command has 3 or 4 streams", frame->fd_count);
  offer_over(sandbox);
  sandbox->offered_count = frame->fd_count;
  for (int i = 0; i < sandbox->offered_count; i++)
    sandbox->offered[i] = frame_steal_fd(frame, (uint32_t)i);
  return 0;
}

int
offer_hold(struct frame *frame, struct err *err)
{
  struct words words;

  if (read_words(frame, &words, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(words.sandbox);
  if (!sandbox || sandbox->state != SANDBOX_STANDING || sandbox->has_session || sandbox->offer)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands that is the daemon's");
  if (words.snapshot || words.has_record || words.has_owned)
    return err_field(err, "payload", "streams are held of a sandbox, by its number alone");
  return hold(sandbox, frame, err);
}

int
offer_deposit(struct frame *frame, uint64_t id, struct err *err)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (!sandbox || sandbox->state != SANDBOX_STANDING || sandbox->owned)
    return err_code(err, "unknown_sandbox", "this session has no sandbox that outlives it");
  if (frame->payload.length)
    return err_field(err, "payload", "a session has one sandbox to hold streams of");
  return hold(sandbox, frame, err);
}

int
offer_held(uint64_t id, uint64_t request, struct err *err)
{
  struct writer nothing = {0};
  struct sandbox *sandbox = sandbox_find(id);

  if (!sandbox || sandbox->offer)
    return err_code(err, "unknown_sandbox", "no sandbox of this number has streams that are held");
  if (sandbox->offered_count)
    control_reply_fds(request, &nothing, sandbox->offered, sandbox->offered_count);
  else
    control_reply(RAMET_OK, request, &nothing);
  return 0;
}

static struct sandbox *
find_offered(uint32_t snapshot)
{
  struct sandbox *oldest = NULL;

  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox))
    if (sandbox->offer && sandbox->state == SANDBOX_STANDING && !sandbox->overdue &&
        snapshot_number(sandbox->origin) == snapshot && (!oldest || sandbox->offer < oldest->offer))
      oldest = sandbox;
  return oldest;
}

int
offer_claim(struct frame *frame, struct lane *session, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct words words;

  if (read_words(frame, &words, err) < 0)
    return -1;
  if (!words.snapshot || words.sandbox || frame->fd_count)
    return err_field(err, "payload", "a claim names a snapshot, and may bring a record");
  struct sandbox *sandbox = find_offered(words.snapshot);
  if (!sandbox)
    return err_code(err, "none_ready", "no fork of snapshot %u is ready", words.snapshot);
  if (words.has_record && sandbox_keep_record(sandbox, words.record, err) < 0)
    return -1;
  sandbox->owned = !words.has_owned || words.owned;
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u64(&writer, RAMET_TAG_SETUP_NS, sandbox->started - sandbox->arrived);
  put_u64(&writer, RAMET_TAG_WATCH, sandbox->watched);
  sandbox_claimed(sandbox, session);
  if (session) {
    lane_reply_fds(session, RAMET_OK, frame->request, &writer, sandbox->offered, sandbox->offered_count);
    sandbox_tell_created(sandbox);
    control_hurry(); /* another is to be made in its place */
  } else {
    control_reply_fds(frame->request, &writer, sandbox->offered, sandbox->offered_count);
  }
  offer_over(sandbox);
  return 0;
}

int
offer_withdraw(uint64_t id, struct err *err)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (!sandbox || !sandbox->offer)
    return err_code(err, "unknown_sandbox", "no sandbox of this number is offered");
  offer_over(sandbox);
  return sandbox_kill(id, err);
}
