// Reads the record of `dibs verify` and asks Porcupine, a checker that knows nothing of dibs, whether one job server
// could have given all these answers, one at a time. It ends within a minute: with 0 if the server could, with 1 if it
// could not, with 2 if that took too long to say of some job.
//
//	go run . RECORD.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const lineMax = 1 << 20

// call is one line of the record; `docs/how-to/verify-your-own-setup.md` has the fields.
type call struct {
	Number                                                        int
	Client, Call, Job, Outcome, Code, Key, Lease, Session, Parent string
	Began, Ended, TTL                                             float64
	Token, Units                                                  int
	Held                                                          bool
	leases                                                        map[string]bool // of a session's end
}

func (c call) claims() bool {
	return c.Call == "claim" || c.Call == "claim_any" || c.Call == "claim_all" || c.Call == "heir"
}

// job is the state: who has it. until: the lease cannot be over before.
type job struct {
	holder string
	token  int
	until  float64
}

func step(state, input, output interface{}) []interface{} {
	s, c := state.(job), input.(call)
	known, mine, over := c.Outcome == "ok", s.holder == c.Lease, s.until <= c.Ended
	stays, freed := []interface{}{s}, []interface{}{job{"", s.token, 0}}
	switch c.Call {
	case "claim", "claim_any", "claim_all", "heir":
		free := s.holder == "" || over
		if !known { // a server may give back at once what nobody was told of: no time is promised
			if free && c.Token > s.token {
				stays = append(stays, job{c.Lease, c.Token, 0})
			}
			return stays
		}
		if mine && c.Token == s.token {
			return []interface{}{job{c.Lease, c.Token, math.Max(s.until, c.Began+c.TTL)}}
		}
		if free && c.Token > s.token {
			return []interface{}{job{c.Lease, c.Token, c.Began + c.TTL}}
		}
		return nil
	case "held":
		if !mine {
			return nil
		}
	case "renew":
		if known && mine {
			return []interface{}{job{s.holder, s.token, math.Max(s.until, c.Began+c.TTL)}}
		}
		if known || (mine && !over) {
			return nil
		}
	case "release", "transfer":
		if mine && known {
			return freed
		}
		if mine && c.Outcome == "unknown" {
			return append(stays, freed...)
		}
		if mine && !over {
			return nil
		}
	case "break":
		return append(stays, freed...)
	case "leave":
		if mine {
			return append(stays, freed...)
		}
	case "session_end":
		if c.leases[s.holder] {
			return append(stays, freed...)
		}
	case "show":
		if c.Held && (s.holder == "" || s.token != c.Token) {
			return nil
		}
		if !c.Held && s.holder != "" && !over {
			return nil
		}
	}
	return stays
}

// operations makes what Porcupine is asked of one job. Answers that say nothing are left out. A call without an answer
// may happen at any time after it was sent, but not without end: its lease has a token, and whoever shows a higher one
// shows that it is over.
func operations(calls []call) []porcupine.Operation {
	// By request key; by lease.
	leaseOf, tokenOf := map[string]string{}, map[string]int{}
	seen := map[int]float64{} // when a token was first shown
	told := map[int]call{}    // the first claim that brought it
	for _, c := range calls {
		if c.Outcome == "ok" && c.Token > 0 && (c.claims() || c.Call == "show") {
			if at, is := seen[c.Token]; !is || c.Ended < at {
				seen[c.Token] = c.Ended
			}
		}
		if c.Outcome == "ok" && c.claims() {
			if first, is := told[c.Token]; !is || c.Began < first.Began {
				told[c.Token] = c
			}
			tokenOf[c.Lease] = c.Token
			if c.Key != "" {
				leaseOf[c.Key] = c.Lease
			}
		}
	}
	since := func(token int) float64 { // when a token at least as high was first shown
		first := math.Inf(1)
		for each, at := range seen {
			if each >= token {
				first = math.Min(first, at)
			}
		}
		return first
	}
	var found []porcupine.Operation
	var lost []float64 // when calls were sent that may have brought a lease of which nobody was told
	add := func(c call, ended float64) {
		until := int64(math.MaxInt64)
		if !math.IsInf(ended, 1) {
			until = int64(math.Max(ended, c.Began) * 1e6)
		}
		c.Ended = ended
		// Answers that were lost end no call, so every call has a client of its own.
		found = append(found, porcupine.Operation{ClientId: len(found), Input: c, Call: int64(c.Began * 1e6), Return: until})
	}
	for _, c := range calls {
		ok, unknown := c.Outcome == "ok", c.Outcome == "unknown"
		switch {
		case c.claims() && ok:
			add(c, c.Ended)
		case c.claims() && (unknown || c.Code == "queued"):
			if lease, is := leaseOf[c.Key]; is {
				c.Lease, c.Token, c.Outcome = lease, tokenOf[lease], "unknown"
				if bound := since(c.Token); bound > c.Began {
					add(c, bound)
				}
				continue
			}
			lost = append(lost, c.Began)
		case c.claims():
		case c.Call == "leave": // its claim may have been served before
			if lease, is := leaseOf[c.Key]; is && c.Outcome != "refused" {
				c.Lease = lease
				if unknown {
					c.Ended = math.Max(c.Ended, since(tokenOf[lease]+1))
				}
				add(c, c.Ended)
			}
		case c.Call == "show" || c.Call == "renew" || c.Call == "held":
			if !unknown {
				add(c, c.Ended)
			}
		case unknown && c.Lease != "":
			if token, is := tokenOf[c.Lease]; is {
				add(c, math.Max(c.Ended, since(token+1)))
			}
		case unknown && c.Call != "break":
			add(c, math.Inf(1))
		default:
			add(c, c.Ended)
		}
		// Where jobs may be shared, no heir is recorded: it is not told whether it is the only owner.
		if c.Call == "transfer" && c.Outcome != "refused" {
			lost = append(lost, c.Began)
		}
	}
	// Somebody was shown to have the job who was told later, or never: a call got it whose answer was lost, or a place in
	// line. Which of the lost calls it was does not matter. It came after all that were given a lower token.
	for token, at := range seen {
		lease := fmt.Sprint("?", token)
		if c, is := told[token]; is {
			if c.Began <= at {
				continue
			}
			lease = c.Lease
		}
		first := math.Inf(1)
		for _, began := range lost {
			first = math.Min(first, began)
		}
		for _, c := range calls {
			if c.Outcome == "ok" && c.claims() && c.Token < token {
				first = math.Max(first, c.Began)
			}
		}
		if first < at {
			add(call{Call: "claim", Outcome: "unknown", Lease: lease, Token: token, Began: first}, at)
		}
	}
	return found
}

// hasSeveral: the model knows one owner at a time.
func hasSeveral(calls []call, related map[string]bool) bool {
	for _, c := range calls {
		if c.Units > 0 || (c.Lease != "" && related[c.Session]) {
			return true
		}
	}
	return false
}

func main() {
	within := flag.Duration("within", 50*time.Second, "how long all jobs together may take")
	flag.Parse()
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	jobs, inSession, count := map[string][]call{}, map[string]map[string]map[string]bool{}, 0
	related := map[string]bool{} // sessions that are part of another, or have others
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, lineMax)
	for lines.Scan() {
		var c call
		if json.Unmarshal(lines.Bytes(), &c) != nil {
			continue
		}
		count++
		switch c.Call {
		case "session_open":
			if c.Parent != "" {
				related[c.Session], related[c.Parent] = true, true
			}
			continue
		case "close", "open", "pool", "race", "pause", "kill", "share": // they change nothing for an owner who is alone
			continue
		case "session_end":
		default:
			jobs[c.Job] = append(jobs[c.Job], c)
		}
		mine := inSession[c.Session]
		if c.Session != "" && c.Outcome == "ok" && c.Lease != "" {
			if mine == nil {
				mine = map[string]map[string]bool{}
				inSession[c.Session] = mine
			}
			if mine[c.Job] == nil {
				mine[c.Job] = map[string]bool{}
			}
			mine[c.Job][c.Lease] = true
		}
		if c.Call == "session_end" {
			for name, leases := range mine {
				c.leases = leases
				jobs[name] = append(jobs[name], c)
			}
		}
	}
	model := porcupine.NondeterministicModel{Init: func() []interface{} { return []interface{}{job{}} }, Step: step}
	wrong, late, several, began := 0, 0, 0, time.Now()
	for name, calls := range jobs {
		if hasSeveral(calls, related) {
			several++
			continue
		}
		left := *within - time.Since(began)
		if left < time.Millisecond {
			left = time.Millisecond // 0 would be without end
		}
		switch porcupine.CheckOperationsTimeout(model.ToModel(), operations(calls), left) {
		case porcupine.Illegal:
			fmt.Printf("%s: no single server could have answered so\n", name)
			wrong++
		case porcupine.Unknown:
			fmt.Printf("%s: not decided in time\n", name)
			late++
		}
	}
	fmt.Printf("%d operations on %d jobs, %d jobs that no single server could have answered so", count, len(jobs), wrong)
	if several > 0 {
		fmt.Printf(", %d jobs left out, which several may have at once", several)
	}
	if late > 0 {
		fmt.Printf(", %d jobs not decided within %s", late, *within)
	}
	fmt.Println()
	if wrong > 0 {
		os.Exit(1)
	}
	if late > 0 {
		os.Exit(2)
	}
}
