import { useEffect, useMemo, useState } from "react";
import { fetchJson } from "./fetcher";

interface Suggestion {
  id: string;
  label: string;
}

export function useSuggestions(query: string, quietMs = 150): Suggestion[] {
  const [suggestions, setSuggestions] = useState<Suggestion[]>([]);
  const trimmed = useMemo(() => query.trim().toLowerCase(), [query]);

  useEffect(() => {
    if (trimmed.length < 2) {
      setSuggestions([]);
      return;
    }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const found = await fetchJson<Suggestion[]>(
        `/api/search?q=${encodeURIComponent(trimmed)}`,
        { attempts: 2, firstDelayMs: 50 },
        controller.signal,
      );
      setSuggestions(found.slice(0, 8));
    }, quietMs);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [trimmed, quietMs]);

  return suggestions;
}
