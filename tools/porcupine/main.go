// Reads the record of `dibs verify` and asks Porcupine, a checker that knows nothing of dibs, whether one job server
// could have given all these answers, one at a time.
//
//	go run . RECORD.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// call is one line of the record; `docs/how-to/verify-your-own-setup.md` has the fields.
type call struct {
	Number                                                int
	Client, Call, Job, Outcome, Code, Key, Lease, Session string
	Began, Ended, TTL                                     float64
	Token                                                 int
	Held                                                  bool
}

// job is the state: who has it. until: the lease cannot be over before. A claim whose answer was lost has the holder "?".
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
		switch {
		case known && (mine || s.holder == "?"+c.Key) && c.Token >= s.token:
			return []interface{}{job{c.Lease, c.Token, math.Max(s.until, c.Began+c.TTL)}}
		case known && free && c.Token > s.token:
			return []interface{}{job{c.Lease, c.Token, c.Began + c.TTL}}
		case known:
			return nil
		case c.Outcome == "unknown" && free:
			return []interface{}{s, job{"?" + c.Key, s.token, 0}} // it may have been granted, nobody knows with which token
		}
		return stays
	case "held":
		if !mine {
			return nil
		}
	case "renew":
		if known && mine {
			return []interface{}{job{s.holder, s.token, math.Max(s.until, c.Began+c.TTL)}}
		}
		if known || (c.Outcome == "refused" && mine && !over) {
			return nil
		}
		return stays
	case "release", "transfer":
		if mine && c.Outcome != "refused" {
			if known {
				return freed
			}
			return append(stays, freed...)
		}
		if c.Outcome == "refused" && mine && !over {
			return nil
		}
		return stays
	case "break", "session_end":
		return append(stays, freed...)
	case "show":
		if known && c.Held && (s.holder == "" || (s.token != c.Token && s.holder[0] != '?')) {
			return nil
		}
		if known && !c.Held && s.holder != "" && !over {
			return nil
		}
	}
	return stays
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	jobs, inSession, calls := map[string][]porcupine.Operation{}, map[string][]string{}, 0
	add := func(c call, name string) {
		ended := int64(c.Ended * 1e6)
		if c.Outcome == "unknown" {
			c.Ended, ended = math.Inf(1), math.MaxInt64 // it may still happen
		}
		client := len(jobs[name]) // an answer that was lost ends no call, so no client has two at once
		jobs[name] = append(jobs[name], porcupine.Operation{ClientId: client, Input: c, Call: int64(c.Began * 1e6), Return: ended})
	}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c call
		if json.Unmarshal(lines.Bytes(), &c) != nil {
			continue
		}
		calls++
		if c.Session != "" && c.Outcome == "ok" && c.Job != "" {
			inSession[c.Session] = append(inSession[c.Session], c.Job)
		}
		if c.Call != "session_end" {
			add(c, c.Job)
		}
		for _, name := range inSession[c.Session] {
			if c.Call == "session_end" {
				add(c, name)
			}
		}
	}
	model := porcupine.NondeterministicModel{Init: func() []interface{} { return []interface{}{job{}} }, Step: step}
	wrong := 0
	for name, operations := range jobs {
		if result := porcupine.CheckOperationsTimeout(model.ToModel(), operations, time.Minute); result != porcupine.Ok {
			fmt.Printf("%s: %v\n", name, result)
			wrong++
		}
	}
	fmt.Printf("%d operations on %d jobs, %d jobs that no single server could have answered so\n", calls, len(jobs), wrong)
	if wrong > 0 {
		os.Exit(1)
	}
}
