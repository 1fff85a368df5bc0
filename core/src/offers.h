/* SPDX-License-Identifier: Apache-2.0
 * Forks that the daemon had made before anybody asked for them. Core keeps the near ends of their streams, and who comes
 * first gets them: so none is handed out twice, and none is ended that has been. */
#ifndef RAMET_OFFERS_H
#define RAMET_OFFERS_H

#include "sandbox.h"

/* OFFER: a standing fork, with the near ends of its streams. */
int offer_make(struct frame *frame, struct err *err) MUST_CHECK;
/* CLAIM: the one that was offered first. Answered here, over `session`, whose sandbox it is from now on, or over the
 * control connection when that is NULL; code `none_ready` when there is none. */
int offer_claim(struct frame *frame, struct lane *session, struct err *err) MUST_CHECK;
/* WITHDRAW: ends one that nobody has claimed. */
int offer_withdraw(uint64_t id, struct err *err) MUST_CHECK;
/* HOLD: near ends of the streams of one that stands, which nobody has but the daemon, lest they go with that. */
int offer_hold(struct frame *frame, struct err *err) MUST_CHECK;
/* HOLD over the session of `id`, which outlives that: for whoever has it next. */
int offer_deposit(struct frame *frame, uint64_t id, struct err *err) MUST_CHECK;
/* HELD: answered here with copies of them, or with nothing. */
int offer_held(uint64_t id, uint64_t request, struct err *err) MUST_CHECK;
/* It is nobody's to have any more. */
void offer_over(struct sandbox *sandbox);

#endif
