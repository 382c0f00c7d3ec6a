import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";

/** Who is signed in, and with which rights; undefined until that is known. */
export function useSession() {
  const { data } = useQuery({ queryKey: ["session"], queryFn: ({ signal }) => api.session(signal), staleTime: 60_000 });
  return data;
}

/** Return whether the role of whoever is signed in lets them create and change experiments. It does until the role is known. */
export function useMayChange(): boolean {
  const role = useSession()?.role;
  return role !== "viewer" && role !== "agent";
}
