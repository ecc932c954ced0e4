// Package fault breaks what runs between engines, on purpose: it hides how a
// plan becomes a stalled read or a lost answer. The command puts its decorators
// around the connector's network and the router's HTTP transport when chaos is
// enabled; tests do the same. Nothing that is decorated knows.
//
// A Plan says what goes wrong (a point and an action) and when (a schedule). An
// Injector decides by it, call by call: the same plan and the same calls give the
// same faults, whatever goroutines they come from, since a decision depends on
// the seed, the fault's place in the plan and the number of the call alone. What
// it did is counted, recorded and can be replayed.
//
// # Points
//
// Points are calls, and each is counted where it happens. D's: handshake, one
// connection attempt with its hello; claim, one claim message; read_post, the
// posting of one read; read_piece, what that read moves; return, one return
// message; heartbeat, one renewal message. P's: seal, one answer to a claim;
// notice, one acknowledgement of a return or a renewal; process, any message or
// read that P serves. The router's: http, one POST to an engine.
//
// # Cells
//
// These pairs of point and action make sense, and no others:
//
//	handshake   error      the peer is not reached (class handshake), differs in one factor (incompatible), or its memory cannot be planned for (setup)
//	handshake   blackhole  nobody answers the dial; it ends at the handshake's limit
//	handshake   stall      the connection is made, but the hello is never answered
//	handshake   cut        the connection ends instead of answering the hello; the connector dials again, so one cut alone is healed
//	handshake   delay      the dial takes longer
//	claim       error      P refuses (class refused), has ended the lease (gone: it is returned first), or the message is not sent (handshake)
//	claim       blackhole  the message is lost; D waits to its no-progress limit
//	claim       cut        P has claimed, the connection ends before its answer; D claims again over a new one, so one cut alone is healed
//	claim       flip       one bit of the message is wrong, behind the lease's id; P refuses
//	claim       duplicate  the message arrives twice; D gets the first answer
//	claim       delay      the message leaves late
//	claim       drop       P has claimed, its answer is lost; D waits to its no-progress limit
//	seal        error      P has claimed and answers with an error
//	seal        blackhole  P has claimed and never answers; D waits to its no-progress limit
//	seal        flip       one bit of one sum is wrong; with every, one sum of each such tile
//	seal        othertile  the sums of one tile are its neighbour's; with every, of each such tile
//	seal        duplicate  the sums of one tile come twice; D refuses the answer
//	seal        delay      the answer leaves late
//	seal        drop       the sums of one tile are missing; D refuses the answer
//	read_post   error      the read ends at once: broken (class read), stalled (timeout), refused since the claim is unknown (gone)
//	read_post   blackhole  the read is posted and nothing ever arrives; it ends at the no-progress limit
//	read_post   cut        the connection ends with the posting
//	read_post   delay      the read is posted late
//	read_piece  error      after so many bytes the read ends, with a class as for read_post
//	read_piece  stall      after so many bytes nothing more arrives; it ends at the no-progress limit
//	read_piece  cut        after so many bytes the connection ends
//	read_piece  flip       one bit of one tile is wrong when it lands; with every, of each such tile
//	read_piece  othertile  one tile gets the bytes of another tile of the peer; with every, each such tile
//	read_piece  duplicate  one tile arrives twice, the second time after its check; with every, each such tile
//	read_piece  delay      one tile lands late; with every, each such tile
//	read_piece  drop       one tile counts as landed and its bytes never came; with every, each such tile
//	return      error      the message is not sent, and D knows
//	return      blackhole  the message is lost; D waits to its limit
//	return      cut        P has the lease back, the connection ends before its answer
//	return      duplicate  the message arrives twice
//	return      delay      the message leaves late
//	return      drop       P has the lease back, its answer is lost
//	heartbeat   error      the message is not sent, and D knows
//	heartbeat   blackhole  the message is lost
//	heartbeat   cut        P has renewed, the connection ends before its answer
//	heartbeat   duplicate  the message arrives twice
//	heartbeat   delay      the message leaves late
//	heartbeat   drop       P has renewed, its answer is lost
//	notice      error      P has acted and answers with an error
//	notice      duplicate  P acts twice
//	notice      delay      P has acted and answers late
//	notice      drop       P has acted and never answers
//	process     blackhole  from this call on P answers nothing, until the plan changes
//	process     delay      from this call on P is frozen for so long
//	process     kill       the process kills itself (SIGKILL)
//	http        error      the engine is not asked; the answer has the status of the fault (default 500)
//	http        blackhole  the request is lost; it ends with its context
//	http        stall      after so many bytes of the answer's body nothing more comes
//	http        cut        after so many bytes of the answer's body the connection ends
//	http        duplicate  the engine gets the request twice, one after the other; the second answer counts. A lease that a doubled prefill leg leaves ends at its deadline
//	http        delay      the request leaves late
//	http        drop       the engine has answered, and the answer is lost; the call ends with its context
//
// A fault that fired has done what its line says: bytes that lie behind the end
// of what is read are brought forward, so that something is always missing.
//
// # Invariants
//
// A read keeps the promises of connector.Read: when Cancel has returned or Done
// is closed no byte lands and no check runs. Whatever waits here ends with its
// context, with its network, or when the plan changes; P's side also at
// MaxHold, so that no answer of a living connection is held for ever. Random
// numbers only ever come from the plan's seed.
package fault
